// The account of what went where: one short table. Makes no CUDA call, so that it may run at exit.
#pragma once

namespace kvshim::telemetry {

// Writes the table to the log's destination; nothing where no CUDA memory was ever asked for.
// Signature of an exit handler.
void write_summary();

}  // namespace kvshim::telemetry
