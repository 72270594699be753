# Tool chain of the `wasm` preset: Debian's clang 19 for wasm32-wasi with threads (shared memory and
# workers of the host, no std::thread) and SIMD128. No relaxed SIMD: its results differ by machine.
set(CMAKE_SYSTEM_NAME WASI)
set(CMAKE_SYSTEM_PROCESSOR wasm32)
# Platform/WASI.cmake, and stand-ins for libraries that Debian has for its own processors only.
list(PREPEND CMAKE_MODULE_PATH ${CMAKE_CURRENT_LIST_DIR}/wasm)
set(CMAKE_CXX_COMPILER clang++-19)
set(CMAKE_CXX_COMPILER_TARGET wasm32-wasi)
set(CMAKE_AR llvm-ar-19 CACHE FILEPATH "")
set(CMAKE_RANLIB llvm-ranlib-19 CACHE FILEPATH "")
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
set(CMAKE_CXX_FLAGS_INIT
    "-isystem ${CMAKE_CURRENT_LIST_DIR}/wasm/include -msimd128 -matomics -mbulk-memory -mmutable-globals -mnontrapping-fptoint -msign-ext -fno-exceptions")
# --no-check-features: Debian's libc and libc++ were built without threads. What they don't lock is
# locked by web/runtime.cpp (malloc) or used on the engine's thread only.
# --stack-first: a stack that grows too far traps instead of running into data.
set(CMAKE_EXE_LINKER_FLAGS_INIT "-mexec-model=reactor -Wl,--import-memory,--shared-memory,--no-check-features,--stack-first,-z,stack-size=1048576,--initial-memory=4194304,--max-memory=4294967296,--export=__stack_pointer,--export=__wasm_init_tls,--export=__tls_size,--export=__tls_align,--wrap=malloc,--wrap=free,--wrap=calloc,--wrap=realloc,--wrap=aligned_alloc,--wrap=posix_memalign")
# -O0 for the link alone: from -O1 on, clang runs whatever wasm-opt it finds, and old ones reject
# what this one writes.
set(CMAKE_CXX_LINK_EXECUTABLE
    "<CMAKE_CXX_COMPILER> --target=wasm32-wasi -O0 <CMAKE_CXX_LINK_FLAGS> <LINK_FLAGS> <OBJECTS> -o <TARGET> <LINK_LIBRARIES>")
