# The headers of Debian's nlohmann-json3-dev, which serve any processor, alone in a folder: the
# machine's other headers must not be found.
find_path(nlohmann_json_headers nlohmann/json.hpp PATHS /usr/include NO_DEFAULT_PATH
          NO_CMAKE_FIND_ROOT_PATH REQUIRED)
set(folder ${PROJECT_BINARY_DIR}/include)
file(MAKE_DIRECTORY ${folder})
file(CREATE_LINK ${nlohmann_json_headers}/nlohmann ${folder}/nlohmann SYMBOLIC)
if(NOT TARGET nlohmann_json::nlohmann_json)
  add_library(nlohmann_json INTERFACE)
  target_include_directories(nlohmann_json SYSTEM INTERFACE ${folder})
  target_compile_definitions(nlohmann_json INTERFACE JSON_NOEXCEPTION)
  add_library(nlohmann_json::nlohmann_json ALIAS nlohmann_json)
endif()
set(nlohmann_json_FOUND TRUE)
