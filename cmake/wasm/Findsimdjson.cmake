# simdjson from its source, which an npm package carries (Debian has it compiled for its own
# processors only).
set(simdjson_source ${PROJECT_SOURCE_DIR}/web/node_modules/@nozbe/simdjson/src)
if(NOT EXISTS ${simdjson_source}/simdjson.cpp)
  message(FATAL_ERROR "${simdjson_source} is missing: run `npm ci --ignore-scripts` in web/ first")
endif()
if(NOT TARGET simdjson::simdjson)
  add_library(simdjson STATIC ${simdjson_source}/simdjson.cpp)
  target_include_directories(simdjson SYSTEM PUBLIC ${simdjson_source})
  target_compile_options(simdjson PRIVATE -w)
  add_library(simdjson::simdjson ALIAS simdjson)
endif()
set(simdjson_FOUND TRUE)
