// Every kernel of hip-probe, and the one place where they are launched.
//
// The kernels are extern "C" with plain arguments, so that a tool which knows nothing of this program
// can find them in the code object by name and run them.
// They stay in one translation unit: without -fgpu-rdc each unit is a device program of its own.

#include "kernels.hpp"

#include <hip/hip_runtime.h>

namespace {

// A block of the matrix product owns one tile of the result;
// each thread computes kTileRowsPerThread elements of one column.
constexpr int kTile = 32;
constexpr int kTileThreadRows = 8;
constexpr int kTileThreads = kTile * kTileThreadRows;
constexpr int kTileRowsPerThread = kTile / kTileThreadRows;

constexpr int kBlock = 256;
// gfx10 and later run waves of 32 lanes, gfx9 waves of 64: LDS is sized for the narrower one.
constexpr int kMostWavesInBlock = kBlock / 32;

// A few hundred milliseconds at most: a clock that stands still is reported, never waited for.
constexpr int kMostClockReads = 1 << 22;

constexpr int blocks_for(int count, int size) { return (count + size - 1) / size; }

} // namespace

extern "C" {

__global__ __launch_bounds__(kBlock) void rocbake_increment(int* values, int count)
{
    const int index = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (index < count)
        values[index] += 1;
}

// c = a * b, all row-major: a is rows x inner, b is inner x columns. Launch with blocks of 32 x 8 threads.
__global__ __launch_bounds__(kTileThreads) void rocbake_matmul(const float* a, const float* b, float* c,
                                                               int rows, int inner, int columns)
{
    // The threads of a 64-lane wave read two rows of a_tile at once:
    // one float of padding puts them into different LDS banks.
    __shared__ float a_tile[kTile][kTile + 1];
    __shared__ float b_tile[kTile][kTile];

    const int x = static_cast<int>(threadIdx.x);
    const int y = static_cast<int>(threadIdx.y);
    const int column = static_cast<int>(blockIdx.x) * kTile + x;
    const int first_row = static_cast<int>(blockIdx.y) * kTile + y;

    float sums[kTileRowsPerThread] = {};
    for (int start = 0; start < inner; start += kTile) {
        for (int i = 0; i < kTileRowsPerThread; ++i) {
            const int tile_row = y + i * kTileThreadRows;
            const int row = first_row + i * kTileThreadRows;
            const bool in_a = row < rows && start + x < inner;
            const bool in_b = start + tile_row < inner && column < columns;
            a_tile[tile_row][x] = in_a ? a[row * inner + start + x] : 0.0F;
            b_tile[tile_row][x] = in_b ? b[(start + tile_row) * columns + column] : 0.0F;
        }
        __syncthreads();

        for (int k = 0; k < kTile; ++k)
            for (int i = 0; i < kTileRowsPerThread; ++i)
                sums[i] += a_tile[y + i * kTileThreadRows][k] * b_tile[k][x];
        __syncthreads();
    }

    for (int i = 0; i < kTileRowsPerThread; ++i) {
        const int row = first_row + i * kTileThreadRows;
        if (row < rows && column < columns)
            c[row * columns + column] = sums[i];
    }
}

// partial[block] = the sum, modulo 2^32, of the values that this block saw.
// Launch with blocks of 256 threads.
__global__ __launch_bounds__(kBlock) void rocbake_reduce(const unsigned* values, unsigned* partial,
                                                         unsigned count)
{
    __shared__ unsigned wave_sums[kMostWavesInBlock];

    unsigned sum = 0;
    const unsigned stride = gridDim.x * blockDim.x;
    for (unsigned index = blockIdx.x * blockDim.x + threadIdx.x; index < count; index += stride)
        sum += values[index];

    const unsigned lanes = static_cast<unsigned>(warpSize);
    for (unsigned distance = lanes / 2; distance > 0; distance /= 2)
        sum += __shfl_down(sum, distance);
    if (threadIdx.x % lanes == 0)
        wave_sums[threadIdx.x / lanes] = sum;
    __syncthreads();

    if (threadIdx.x == 0) {
        unsigned total = 0;
        for (unsigned wave = 0; wave < blockDim.x / lanes; ++wave)
            total += wave_sums[wave];
        partial[blockIdx.x] = total;
    }
}

// Waits until the device's steady clock has advanced by `ticks`, then stores:
// whoever does not wait for it sees the old values.
__global__ __launch_bounds__(kBlock) void rocbake_store_late(int* values, int count, int value,
                                                             long long ticks)
{
    const long long begin = wall_clock64();
    for (int i = 0; i < kMostClockReads && wall_clock64() - begin < ticks; ++i) {
    }

    const int index = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (index < count)
        values[index] = value;
}

// What only the device can know: the name its code object was compiled under,
// the lanes that really run in lockstep, its clock.
__global__ __launch_bounds__(probe::kIdentifyThreads) void rocbake_identify(probe::Identity* identity,
                                                                            unsigned long long challenge)
{
    const auto lanes = static_cast<unsigned>(__popcll(__ballot(1)));
    if (threadIdx.x != 0)
        return;

#if defined(__HIP_DEVICE_COMPILE__)
    constexpr char target_id[] = __amdgcn_target_id__;
    static_assert(sizeof(target_id) <= sizeof(identity->target_id));
    for (unsigned i = 0; i < sizeof(target_id); ++i)
        identity->target_id[i] = target_id[i];
#endif
    identity->lanes = lanes;
    identity->answer = probe::answer_to(challenge);

    const long long begin = wall_clock64();
    long long end = begin;
    for (int i = 0; i < kMostClockReads && end == begin; ++i)
        end = wall_clock64();
    identity->clock_begin = begin;
    identity->clock_end = end;
}

} // extern "C"

namespace probe {

hipError_t find_code_object()
{
    hipFuncAttributes attributes{};
    return hipFuncGetAttributes(&attributes, reinterpret_cast<const void*>(rocbake_identify));
}

hipError_t launch_identify(Identity* identity, unsigned long long challenge)
{
    rocbake_identify<<<1, kIdentifyThreads>>>(identity, challenge);
    return hipGetLastError();
}

hipError_t launch_increment(int* values, int count, hipStream_t stream)
{
    rocbake_increment<<<blocks_for(count, kBlock), kBlock, 0, stream>>>(values, count);
    return hipGetLastError();
}

hipError_t launch_matmul(const float* a, const float* b, float* c, MatrixShape shape)
{
    const dim3 grid(blocks_for(shape.columns, kTile), blocks_for(shape.rows, kTile));
    rocbake_matmul<<<grid, dim3(kTile, kTileThreadRows)>>>(a, b, c, shape.rows, shape.inner, shape.columns);
    return hipGetLastError();
}

hipError_t launch_reduce(const unsigned* values, unsigned* partial, unsigned count, unsigned blocks)
{
    rocbake_reduce<<<blocks, kBlock>>>(values, partial, count);
    return hipGetLastError();
}

hipError_t launch_store_late(int* values, int count, int value, long long ticks, hipStream_t stream)
{
    rocbake_store_late<<<blocks_for(count, kBlock), kBlock, 0, stream>>>(values, count, value, ticks);
    return hipGetLastError();
}

} // namespace probe
