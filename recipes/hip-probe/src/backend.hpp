// Who computes: a GPU through HIP, or the host's own code. Both get the same inputs.
#pragma once

#include <vector>

namespace probe {

struct MatrixShape {
    int rows;
    int inner;
    int columns;
};

// Each computation takes what it starts from and returns all of it, what it must leave alone included.
struct Backend {
    // To other memory and back.
    std::vector<unsigned char> (*transfer)(const std::vector<unsigned char>& sent);

    // One more in each of the first `count` values.
    std::vector<int> (*increment)(const std::vector<int>& values, int count);

    // c = a * b, all row-major; `c` may be longer than the product is.
    std::vector<float> (*multiply)(const std::vector<float>& a, const std::vector<float>& b,
                                   const std::vector<float>& c, MatrixShape shape);

    // Modulo 2^32: by so many blocks, and then their sums by one.
    unsigned (*sum)(const std::vector<unsigned>& values, int blocks);
};

} // namespace probe
