# Raspberry Pi 3 Model B (4x Cortex-A53) running 32-bit Linux, cross-compiled with Debian's arm-linux-gnueabihf packages.
# On a 32-bit ARM computer the native compiler is used. CMAKE_C_COMPILER may name another compiler (clang).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR arm)
set(CMAKE_C_COMPILER_TARGET arm-linux-gnueabihf)
set(CMAKE_CXX_COMPILER_TARGET arm-linux-gnueabihf)
set(CMAKE_ASM_COMPILER_TARGET arm-linux-gnueabihf)

if(NOT CMAKE_HOST_SYSTEM_PROCESSOR MATCHES "^(armv7l|armv8l|arm)$")
  if(NOT CMAKE_C_COMPILER)
    set(CMAKE_C_COMPILER arm-linux-gnueabihf-gcc)
  endif()
  if(NOT CMAKE_CXX_COMPILER)
    set(CMAKE_CXX_COMPILER arm-linux-gnueabihf-g++)
  endif()
  # ctest and the project's own tools run through user-mode QEMU.
  set(CMAKE_CROSSCOMPILING_EMULATOR "qemu-arm;-cpu;max;-L;/usr/arm-linux-gnueabihf")
  set(CMAKE_FIND_ROOT_PATH /usr/arm-linux-gnueabihf)
  set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
  set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
  set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
endif()
