# Builds for AArch64 Linux with Debian's cross compiler; what runs there runs under qemu-aarch64.
# Libraries come from arm64/, unpacked from Debian's arm64 packages by scripts/arm64_libraries, so
# that this machine's own package database stays as it is.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)

cmake_path(SET tandem_root NORMALIZE ${CMAKE_CURRENT_LIST_DIR}/../build-arm64/root)
set(CMAKE_FIND_ROOT_PATH ${tandem_root} /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_LIBDIR}
    ${tandem_root}/usr/lib/aarch64-linux-gnu/pkgconfig:${tandem_root}/usr/share/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${tandem_root})

# Headers that differ between processors lie in a folder that only a native compiler searches.
set(CMAKE_CXX_FLAGS_INIT "-isystem ${tandem_root}/usr/include/aarch64-linux-gnu")
# RPATH, not RUNPATH: it also finds the libraries that libraries need.
set(tandem_libraries ${tandem_root}/usr/lib/aarch64-linux-gnu)
set(CMAKE_EXE_LINKER_FLAGS_INIT
    "-Wl,--disable-new-dtags,-rpath,${tandem_libraries},-rpath-link,${tandem_libraries}")
