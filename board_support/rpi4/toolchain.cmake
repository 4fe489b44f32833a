# Raspberry Pi 4 Model B (4x Cortex-A72) running 64-bit Linux.
set(AOTGEN_BOARD rpi4)
set(AOTGEN_TRIPLE aarch64-linux-gnu)
set(AOTGEN_EMULATOR qemu-aarch64 -cpu cortex-a72 -L /usr/aarch64-linux-gnu)
include("${CMAKE_CURRENT_LIST_DIR}/../linux.cmake")
