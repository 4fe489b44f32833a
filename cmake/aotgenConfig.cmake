# find_package(aotgen): aotgen_add_model, see aotgen.cmake.
#
# This file lies in a checkout, in share/cmake/aotgen of the environment that `pip install` put aotgen in, where CMake finds
# it as long as the environment is active, and wherever `cmake --install` put it.
include("${CMAKE_CURRENT_LIST_DIR}/aotgen.cmake")
