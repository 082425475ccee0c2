// What the host may ask of the kernels.
// Each launch returns the runtime's answer; results are there when the stream is synchronised.
#pragma once

#include "backend.hpp"

#include <hip/hip_runtime_api.h>

namespace probe {

inline constexpr int kIdentifyThreads = 64;

// Written by the device, read by the host.
struct Identity {
    char target_id[64];        // of the code object that ran, as the compiler named it: "gfx90a:xnack+"
    unsigned lanes;            // counted, of a block as wide as the widest wave
    unsigned long long answer; // answer_to(challenge): shows that this run wrote it
    long long clock_begin;     // ticks of the steady clock
    long long clock_end;
};

constexpr unsigned long long answer_to(unsigned long long challenge)
{
    return (challenge ^ 0x726f6362616b65ULL) * 0x9e3779b97f4a7c15ULL;
}

// Succeeds only if the program carries machine code that the current device can run.
[[nodiscard]] hipError_t find_code_object();

[[nodiscard]] hipError_t launch_identify(Identity* identity, unsigned long long challenge);
[[nodiscard]] hipError_t launch_increment(int* values, int count, hipStream_t stream);
[[nodiscard]] hipError_t launch_matmul(const float* a, const float* b, float* c, MatrixShape shape);
[[nodiscard]] hipError_t launch_reduce(const unsigned* values, unsigned* partial, unsigned count,
                                       unsigned blocks);
[[nodiscard]] hipError_t launch_store_late(int* values, int count, int value, long long ticks,
                                           hipStream_t stream);

} // namespace probe
