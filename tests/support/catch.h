// Catch2, whichever major version the system has. Tests include this and nothing of Catch2's own.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif
