// The main function of the unit tests where Catch2 is version 2, which does not bring one.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
