"""Runs OpenCL nests on whatever OpenCL device there is (PoCL), by a small host program in C."""

from __future__ import annotations

import ctypes.util
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
from te.nest_harness import Build

from aotgen.schedule.base import Config
from aotgen.schedule.nest import NestTemplate

SHIFT = 5
"""Elements in front of every argument's data: the offset that kernels get."""

HOST = r"""
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(call) do { const cl_int e_ = (call); if (e_) { \
    fprintf(stderr, "line %d: error %d\n", __LINE__, (int)e_); exit(4); } } while (0)

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    cl_platform_id platform;
    cl_uint count = 0;
    if (clGetPlatformIDs(1, &platform, &count) || count == 0) return 77;
    cl_device_id device;
    if (clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL)) return 77;
    cl_int e;
    cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &e);
    CHECK(e);
    cl_command_queue queue = clCreateCommandQueue(context, device, 0, &e);
    CHECK(e);
    FILE *f = fopen(argv[1], "rb");
    if (!f) return 2;
    static char text[1 << 24];
    const size_t length = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    const char *source = text;
    cl_program program = clCreateProgramWithSource(context, 1, &source, &length, &e);
    CHECK(e);
    if (clBuildProgram(program, 1, &device, "-cl-std=CL1.2", NULL, NULL)) {
        static char log[1 << 16];
        clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, sizeof log, log, NULL);
        fprintf(stderr, "%s\n", log);
        return 3;
    }
    FILE *in = fopen(argv[2], "rb"), *out = fopen(argv[3], "wb");
    if (!in || !out) return 2;
    int32_t head[5];
    for (int c = 0; fread(head, 4, 5, in) == 5; c++) {
        char name[32];
        snprintf(name, sizeof name, "k%d", c);
        cl_kernel kernel = clCreateKernel(program, name, &e);
        CHECK(e);
        cl_mem buffer[16];
        int32_t info[16][3];
        for (int a = 0; a < head[0]; a++) {
            if (fread(info[a], 4, 3, in) != 3) return 2;
            void *data = malloc((size_t)info[a][0]);
            if (!data || fread(data, 1, (size_t)info[a][0], in) != (size_t)info[a][0]) return 2;
            buffer[a] = clCreateBuffer(context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR,
                                       (size_t)info[a][0], data, &e);
            CHECK(e);
            free(data);
            CHECK(clSetKernelArg(kernel, (cl_uint)(2 * a), sizeof buffer[a], &buffer[a]));
            CHECK(clSetKernelArg(kernel, (cl_uint)(2 * a + 1), 4, &info[a][1]));
        }
        const size_t size[3] = {(size_t)head[2], (size_t)head[3], (size_t)head[4]};
        const cl_uint rank = (cl_uint)head[1];
        CHECK(clEnqueueNDRangeKernel(queue, kernel, rank, NULL, size, NULL, 0, NULL, NULL));
        for (int a = 0; a < head[0]; a++) {
            if (info[a][2]) {
                void *data = malloc((size_t)info[a][0]);
                if (!data) return 2;
                CHECK(clEnqueueReadBuffer(queue, buffer[a], CL_TRUE, 0, (size_t)info[a][0], data, 0,
                                          NULL, NULL));
                fwrite(data, 1, (size_t)info[a][0], out);
                free(data);
            }
            clReleaseMemObject(buffer[a]);
        }
        clReleaseKernel(kernel);
    }
    fclose(in);
    return fclose(out);
}
"""


def available() -> bool:
    """Whether a host program can be built and an OpenCL driver is installed."""
    return bool(
        shutil.which("gcc")
        and ctypes.util.find_library("OpenCL")
        and Path("/usr/include/CL/cl.h").exists()
        and any(Path("/etc/OpenCL/vendors").glob("*.icd"))
    )


def run_opencl(build: Build, folder: Path) -> list[list[np.ndarray]]:
    """The outputs of every case of ``build``, whose target must be a gpu."""
    folder.mkdir(parents=True, exist_ok=True)
    template = NestTemplate()
    texts, blob = [], []
    for k, case in enumerate(build.cases):
        kernel = template.kernel(case.group, build.target, Config(), case.views())
        build.kernels.append(kernel)
        texts.append(kernel.body.replace("@KERNEL@", f"k{k}"))
        size = (*kernel.global_size, 1, 1)[:3]
        blob.append(struct.pack("<5i", len(kernel.args), len(kernel.global_size), *size))
        blob.append(_arguments(build, k))
    (folder / "kernels.cl").write_text("\n".join(texts))
    (folder / "in.bin").write_bytes(b"".join(blob))
    (folder / "host.c").write_text(HOST)
    host = folder / "host"
    command = ["gcc", "-std=c99", "-O1", str(folder / "host.c"), "-o", str(host), "-lOpenCL"]
    subprocess.run(command, check=True)
    done = subprocess.run(
        [str(host), "kernels.cl", "in.bin", "out.bin"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[:4000]
    return build.results((folder / "out.bin").read_bytes(), SHIFT)


def _arguments(build: Build, k: int) -> bytes:
    """A case's argument blocks, each with ``SHIFT`` elements of padding in front."""
    out = []
    for size, raw, is_output, item in build.arguments(k):
        data = b"\x5a" * (SHIFT * item) + raw
        out.append(struct.pack("<3i", size + SHIFT * item, SHIFT, int(is_output)) + data)
    return b"".join(out)
