#pragma once

#include <string>

// A greeting for each word that was downloaded.
std::string greeting();
