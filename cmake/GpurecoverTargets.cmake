# Flags and helpers shared by every folder. Nothing here knows what a component does.

add_library(gpurecover_flags INTERFACE)
add_library(gpurecover::flags ALIAS gpurecover_flags)
target_compile_options(gpurecover_flags INTERFACE -Wall -Wextra -Werror -Wno-missing-field-initializers
                       "-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=")
# GCC 12 takes the array behind an initializer_list of one-byte enums for uninitialized at -O2.
target_compile_options(gpurecover_flags INTERFACE
                       $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
target_include_directories(gpurecover_flags INTERFACE ${PROJECT_SOURCE_DIR})
if(GPURECOVER_SANITIZE)
  # GCC 12 takes what it makes of the sanitizers' checks for overflows.
  target_compile_options(gpurecover_flags INTERFACE
                         $<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overflow -Wno-array-bounds
                                                  -Wno-stringop-overread>)
  add_compile_options(-fsanitize=${GPURECOVER_SANITIZE} -fno-omit-frame-pointer)
  if(GPURECOVER_SANITIZE MATCHES "undefined")
    add_compile_options(-fno-sanitize-recover=undefined)
  endif()
  add_link_options(-fsanitize=${GPURECOVER_SANITIZE})
endif()

# gpurecover_library(NAME SOURCES... [LIBS ...]): the static library gpurecover_NAME, known as
# gpurecover::NAME; headers are included from the project root, as "NAME/header.h".
function(gpurecover_library name)
  cmake_parse_arguments(ARG "" "" "LIBS" ${ARGN})
  add_library(gpurecover_${name} STATIC ${ARG_UNPARSED_ARGUMENTS})
  add_library(gpurecover::${name} ALIAS gpurecover_${name})
  target_link_libraries(gpurecover_${name} PUBLIC gpurecover::flags ${ARG_LIBS})
endfunction()

# gpurecover_unit_test(NAME SOURCES... [LIBS ...]): a GoogleTest program, each test a CTest test.
function(gpurecover_unit_test name)
  cmake_parse_arguments(ARG "" "" "LIBS" ${ARGN})
  add_executable(${name} ${ARG_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE gpurecover::flags GTest::gmock GTest::gtest_main ${ARG_LIBS})
  # What is tested is compiled as it is shipped; the tests themselves only need to be built soon.
  target_compile_options(${name} PRIVATE -O0)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  gtest_discover_tests(${name} PROPERTIES LABELS unit TIMEOUT 120 DISCOVERY_TIMEOUT 60)
endfunction()

# gpurecover_fuzz_target(NAME SOURCE CORPUS_DIR [LIBS ...]): a libFuzzer program (clang only). Its
# libraries are compiled again with coverage, so call it from tests/fuzz only, in a build of its own.
function(gpurecover_fuzz_target name source corpus)
  cmake_parse_arguments(ARG "" "" "LIBS" ${ARGN})
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE gpurecover::flags ${ARG_LIBS})
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fuzz)
  add_test(NAME ${name} COMMAND ${name} -max_total_time=20 -timeout=10 -rss_limit_mb=2048
           ${PROJECT_BINARY_DIR}/fuzz/${name}.corpus ${corpus})
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/fuzz/${name}.corpus)
  set_tests_properties(${name} PROPERTIES LABELS fuzz TIMEOUT 120)
endfunction()

# gpurecover_embed(TARGET FILE SYMBOL): compiles FILE's bytes into TARGET as
# `extern const std::string_view SYMBOL` in namespace gpurecover::embedded.
function(gpurecover_embed target file symbol)
  set(out ${CMAKE_CURRENT_BINARY_DIR}/embedded_${symbol}.cpp)
  add_custom_command(OUTPUT ${out}
    COMMAND ${CMAKE_COMMAND} -DIN=${file} -DOUT=${out} -DSYMBOL=${symbol}
            -P ${PROJECT_SOURCE_DIR}/cmake/Embed.cmake
    DEPENDS ${file} ${PROJECT_SOURCE_DIR}/cmake/Embed.cmake VERBATIM)
  target_sources(${target} PRIVATE ${out})
endfunction()
