#include <iostream>

#include "lib/greeting.hpp"

int main() { std::cout << greeting() << "\n"; }
