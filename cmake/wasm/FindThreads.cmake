# Threads are workers that the host starts: nothing to link.
if(NOT TARGET Threads::Threads)
  add_library(Threads::Threads INTERFACE IMPORTED)
endif()
set(Threads_FOUND TRUE)
