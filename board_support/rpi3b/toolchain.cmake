# Raspberry Pi 3 Model B (4x Cortex-A53) running 64-bit Linux.
set(AOTGEN_BOARD rpi3b)
set(AOTGEN_TRIPLE aarch64-linux-gnu)
set(AOTGEN_EMULATOR qemu-aarch64 -cpu cortex-a53 -L /usr/aarch64-linux-gnu)
include("${CMAKE_CURRENT_LIST_DIR}/../linux.cmake")
