// The kernels of the code objects in this folder; README.md says how they were compiled.

#include <hip/hip_runtime.h>

extern "C" __global__ void add(const int* a, int* b, int count)
{
    const int index = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (index < count)
        b[index] = a[index] + 1;
}

// With LDS, a barrier and scratch memory: more numbers than registers, at places known only now.
extern "C" __global__ __launch_bounds__(64) void turn(const float* a, float* b, unsigned char power)
{
    __shared__ float tile[64];
    float mine[300];
#pragma unroll 1
    for (int i = 0; i < 300; ++i)
        mine[(i * power) % 300] = a[threadIdx.x] * static_cast<float>(i % 7);
    tile[threadIdx.x] = mine[power];
    __syncthreads();
    b[blockIdx.x * blockDim.x + threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];
}

// With a relocation: the pointer is written by whoever loads the code.
__device__ int table[4] = {1, 2, 3, 4};
__device__ int* third = &table[2];
extern "C" __global__ void through(int* out)
{
    out[threadIdx.x] = table[threadIdx.x & 3] + static_cast<int>(third - table) * 10;
}

// By value, larger than a register: three numbers.
struct Three {
    unsigned x, y, z;
};
extern "C" __global__ void by_value(unsigned* out, Three three) { out[threadIdx.x] = three.x + three.y * three.z; }
