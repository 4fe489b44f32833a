# Rockchip RK3399 (2x Cortex-A72, 4x Cortex-A53) running 64-bit Linux.
set(AOTGEN_BOARD rk3399)
set(AOTGEN_TRIPLE aarch64-linux-gnu)
set(AOTGEN_EMULATOR qemu-aarch64 -cpu cortex-a72 -L /usr/aarch64-linux-gnu)
include("${CMAKE_CURRENT_LIST_DIR}/../linux.cmake")
