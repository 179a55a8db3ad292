# gpurecover_analyze(TARGET [OUTPUT_DIRECTORY DIR] [REQUIRED])
#
# After each build of TARGET, an executable or a library with kernels, analyses them and stores what
# was found beside it, or in DIR: there `gpurecover run` finds it, with --analysis-dir DIR for a
# folder. A kernel that the analysis cannot follow is no failure. A file that cannot be read, or has
# no kernels, is a warning, with REQUIRED an error.
set(_gpurecover_analyze_script ${CMAKE_CURRENT_LIST_DIR}/GpurecoverAnalyzeRun.cmake)

function(gpurecover_analyze target)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "REQUIRED" "OUTPUT_DIRECTORY" "")
  if(ARG_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "gpurecover_analyze: \"${ARG_UNPARSED_ARGUMENTS}\" is not understood")
  endif()
  if(NOT TARGET ${target})
    message(FATAL_ERROR "gpurecover_analyze: ${target} is no target; call it after add_executable or "
                        "add_library")
  endif()
  get_target_property(type ${target} TYPE)
  if(NOT type MATCHES "^(EXECUTABLE|SHARED_LIBRARY|MODULE_LIBRARY)$")
    message(FATAL_ERROR "gpurecover_analyze: ${target} is neither an executable nor a shared "
                        "library; analyse what it is linked into")
  endif()
  add_custom_command(TARGET ${target} POST_BUILD
    COMMAND ${CMAKE_COMMAND} -DPROGRAM=$<TARGET_FILE:gpurecover::gpurecover>
            -DFILE=$<TARGET_FILE:${target}> "-DFOLDER=${ARG_OUTPUT_DIRECTORY}"
            -DREQUIRED=${ARG_REQUIRED} -P ${_gpurecover_analyze_script}
    COMMENT "Analysing the kernels of ${target}" VERBATIM)
endfunction()
