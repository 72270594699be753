# tandem_join(TARGET): its sources are compiled TANDEM_JOIN at a time, as one text, which halves the time
# of a build from nothing. What their anonymous namespaces define must differ in name; TANDEM_ALONE
# lists the files that can't be joined, * is all.
function(tandem_join target)
  if(TANDEM_JOIN EQUAL 1 OR TANDEM_ALONE STREQUAL "*")
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${TANDEM_JOIN})
  if(TANDEM_ALONE)
    set_source_files_properties(${TANDEM_ALONE} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endfunction()

# tandem_library(NAME [dependencies...]): all .cpp files of this folder and its subfolders, those
# left out that have a CMakeLists.txt of their own. Files that end in _native.cpp are left out of
# WebAssembly builds, those that end in _wasm.cpp of all others; TANDEM_NATIVE_ONLY lists further
# files that need an operating system.
function(tandem_library name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  if(CMAKE_SYSTEM_NAME STREQUAL "WASI")
    list(FILTER sources EXCLUDE REGEX "_native\\.cpp$")
    foreach(file ${TANDEM_NATIVE_ONLY})
      list(REMOVE_ITEM sources ${CMAKE_CURRENT_SOURCE_DIR}/${file})
    endforeach()
  else()
    list(FILTER sources EXCLUDE REGEX "_wasm\\.cpp$")
  endif()
  file(GLOB own LIST_DIRECTORIES false ${CMAKE_CURRENT_SOURCE_DIR}/*/CMakeLists.txt)
  foreach(file ${own})
    get_filename_component(folder ${file} DIRECTORY)
    list(FILTER sources EXCLUDE REGEX "^${folder}/")
  endforeach()
  if(sources)
    add_library(tandem_${name} STATIC ${sources})
    tandem_join(tandem_${name})
    target_include_directories(tandem_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(tandem_${name} PUBLIC ${ARGN} Threads::Threads)
  else()
    add_library(tandem_${name} INTERFACE)
    target_include_directories(tandem_${name} INTERFACE ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(tandem_${name} INTERFACE ${ARGN} Threads::Threads)
  endif()
endfunction()

# tandem_tests(NAME [dependencies...]): all *_test.cpp of tests/NAME in one program, one CTest entry a test
# (of those that TANDEM_TEST_FILTER matches, if it is set).
function(tandem_tests name)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.cpp)
  if(NOT sources)
    return()
  endif()
  add_executable(${name}_tests ${sources})
  tandem_join(${name}_tests)
  target_link_libraries(${name}_tests PRIVATE ${ARGN} GTest::gtest GTest::gtest_main)
  target_include_directories(${name}_tests PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/tests)
  target_compile_definitions(${name}_tests PRIVATE
    TANDEM_SOURCE_DIR="${PROJECT_SOURCE_DIR}" TANDEM_BINARY_DIR="${PROJECT_BINARY_DIR}")
  set(filter)
  if(TANDEM_TEST_FILTER)
    set(filter TEST_FILTER ${TANDEM_TEST_FILTER})
  endif()
  gtest_discover_tests(${name}_tests TEST_PREFIX "${name}." ${filter} DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 300)
endfunction()

# tandem_fuzz(FILE [dependencies...]): fuzz/FILE.cpp as a libFuzzer program.
function(tandem_fuzz name)
  add_executable(fuzz_${name} ${name}.cpp)
  target_link_libraries(fuzz_${name} PRIVATE ${ARGN})
  target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
endfunction()
