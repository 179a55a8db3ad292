# Tests of the PTX interpreter.
if(TARGET gpurecover::softgpu_interp)
  gpurecover_unit_test(interp_test
    ${CMAKE_CURRENT_LIST_DIR}/interp/interp_arithmetic_test.cpp
    ${CMAKE_CURRENT_LIST_DIR}/interp/interp_execution_test.cpp
    ${CMAKE_CURRENT_LIST_DIR}/interp/interp_fault_test.cpp
    LIBS gpurecover::softgpu_interp gpurecover::image ${CMAKE_DL_LIBS})
  # The references compute in __float128 and change the rounding mode.
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/interp/interp_arithmetic_test.cpp PROPERTIES
    COMPILE_OPTIONS "-frounding-math;-ffp-contract=off")
endif()
