# tandem_embed_text(TARGET HEADER_FUNCTION FILES...) adds a generated source to TARGET that defines
#   std::string_view FUNCTION(std::string_view name)
# in NAMESPACE: the text of the file of that name (without its extension), or empty.
function(tandem_embed_text target namespace function)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/${function}_text.cpp)
  add_custom_command(
    OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DOUTPUT=${output} -DNAMESPACE=${namespace} -DFUNCTION=${function}
            "-DFILES=${ARGN}" -P ${PROJECT_SOURCE_DIR}/cmake/embed_text_script.cmake
    DEPENDS ${ARGN} ${PROJECT_SOURCE_DIR}/cmake/embed_text_script.cmake
    VERBATIM)
  target_sources(${target} PRIVATE ${output})
endfunction()
