// What gives memory that went past kvshim back to it, for the frameworks that this process shows.
#pragma once

namespace kvshim::telemetry {

enum class Way : unsigned char { own_vmm, pool, own_managed };

// Calls say(argument, text) for each remedy that fits this process: a variable that is set, a
// library that is loaded. The general advice where nothing is recognised. Reads the environment.
void for_each_remedy(Way way, void (*say)(void* argument, const char* text), void* argument);

}  // namespace kvshim::telemetry
