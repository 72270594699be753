// In place of wasi-libc's header of this name, which says that errno is thread-local: Debian's
// library, built for one thread, has it in plain memory. Nothing that helper threads do looks at
// it.
#pragma once

#ifdef __cplusplus
extern "C" {
#endif
extern int errno;
#ifdef __cplusplus
}
#endif
#define errno errno
