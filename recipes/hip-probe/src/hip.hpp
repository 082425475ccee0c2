// HIP with C++ manners: a failed call throws, and what was acquired is given back.
#pragma once

#include "report.hpp"

#include <hip/hip_runtime_api.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace probe {

// The runtime has several ways to say that a program carries no code for a device.
constexpr bool means_no_code_object(hipError_t error)
{
    return error == hipErrorNoBinaryForGpu || error == hipErrorInvalidDeviceFunction ||
           error == hipErrorInvalidKernelFile || error == hipErrorInvalidImage;
}

inline void require(hipError_t status, const char* call)
{
    if (status == hipSuccess)
        return;
    const bool no_code_object = means_no_code_object(status);
    throw Failure(no_code_object ? Verdict::no_code_object : Verdict::runtime_error,
                  no_code_object ? "no-code-object" : "hip-call",
                  std::string(call) + " failed: " + hipGetErrorString(status), {}, hipGetErrorName(status));
}

// For destructors, which must not throw.
inline void report_only(hipError_t status, const char* call) noexcept
{
    if (status != hipSuccess)
        std::fprintf(stderr, "hip-probe: %s failed: %s\n", call, hipGetErrorString(status));
}

template <typename T>
class DeviceBuffer {
public:
    explicit DeviceBuffer(std::size_t count) : count_(count)
    {
        require(hipMalloc(reinterpret_cast<void**>(&data_), bytes()), "hipMalloc");
    }
    explicit DeviceBuffer(const std::vector<T>& values) : DeviceBuffer(values.size()) { upload(values); }
    ~DeviceBuffer() { report_only(hipFree(data_), "hipFree"); }
    DeviceBuffer(const DeviceBuffer&) = delete;
    DeviceBuffer& operator=(const DeviceBuffer&) = delete;

    T* data() { return data_; }

    void upload(const std::vector<T>& values)
    {
        require(hipMemcpy(data_, values.data(), bytes(), hipMemcpyHostToDevice), "hipMemcpy to the device");
    }

    // Waits for the work on the default stream.
    std::vector<T> download() const
    {
        std::vector<T> values(count_);
        require(hipMemcpy(values.data(), data_, bytes(), hipMemcpyDeviceToHost), "hipMemcpy to the host");
        return values;
    }

    std::size_t bytes() const { return count_ * sizeof(T); }

private:
    T* data_ = nullptr;
    std::size_t count_;
};

class Stream {
public:
    // Non-blocking: only what is asked for orders it after another stream.
    Stream()
    {
        require(hipStreamCreateWithFlags(&stream_, hipStreamNonBlocking), "hipStreamCreateWithFlags");
    }
    ~Stream() { report_only(hipStreamDestroy(stream_), "hipStreamDestroy"); }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    hipStream_t get() const { return stream_; }
    void synchronize() const { require(hipStreamSynchronize(stream_), "hipStreamSynchronize"); }

private:
    hipStream_t stream_ = nullptr;
};

class Event {
public:
    Event() { require(hipEventCreate(&event_), "hipEventCreate"); }
    ~Event() { report_only(hipEventDestroy(event_), "hipEventDestroy"); }
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;

    void record(const Stream& stream) { require(hipEventRecord(event_, stream.get()), "hipEventRecord"); }
    void hold_back(const Stream& stream) const
    {
        require(hipStreamWaitEvent(stream.get(), event_, 0), "hipStreamWaitEvent");
    }
    void synchronize() const { require(hipEventSynchronize(event_), "hipEventSynchronize"); }

    float milliseconds_until(const Event& later) const
    {
        float milliseconds = 0;
        require(hipEventElapsedTime(&milliseconds, event_, later.event_), "hipEventElapsedTime");
        return milliseconds;
    }

private:
    hipEvent_t event_ = nullptr;
};

} // namespace probe
