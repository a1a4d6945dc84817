// Writes flight-recorder dumps with torch's own recorder, as an NCCL process group would use it.
//
// The events are made up, since there is no GPU: an event is over when the script says so. Reads
// lines from stdin, fields separated by tabs:
//   new                                    a new recorder: another rank
//   group  UID DESC RANK,RANK,...
//   call   PG_ID UID DESC COLLECTIVE_SEQ P2P_SEQ OP_ID NAME SIZE,SIZE,... STATE P2P
//   dump   PATH
//   serve  PIPE PATH                       as the heartbeat thread of ProcessGroupNCCL does
// STATE: scheduled, started, completed (and retired), timedout (retired, not completed).
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <fstream>
#include <iostream>
#include <sstream>
#include <thread>
#include <torch/csrc/distributed/c10d/FlightRecorderDetail.hpp>

struct Event {
  bool over;
  bool query() { return over; }
};

namespace c10d {
template <>
float getDurationFromEvent<Event>(Event&, Event&) { return 1.5f; }
template struct FlightRecorder<Event>;
} // namespace c10d

using Recorder = c10d::FlightRecorder<Event>;

static std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
  return parts;
}

static Event yes{true}, no{false};

static void call(Recorder& recorder, std::map<size_t, std::shared_ptr<c10d::ProcessGroupStatus>>& all,
                 const std::vector<std::string>& f) {
  const size_t pg = std::stoul(f[1]);
  auto& status = all[pg];
  if (!status) status = std::make_shared<c10d::ProcessGroupStatus>();
  std::vector<int64_t> sizes;
  for (const auto& size : split(f[8], ',')) sizes.push_back(std::stol(size));
  const auto tensor = at::empty(sizes);
  const bool p2p = f[10] == "1";
  const bool started = f[9] != "scheduled" && f[9] != "timedout";
  const auto id = recorder.record(pg, {f[2], f[3]}, std::stoul(f[4]), std::stoul(f[5]),
      std::stoul(f[6]), f[7], {tensor}, {tensor}, started ? &yes : &no,
      f[9] == "completed" ? &yes : &no, std::chrono::milliseconds(600000), status, p2p);
  const int64_t seq = std::stol(p2p ? f[5] : f[4]);
  status->lastEnqueuedSeq = seq;
  if (f[9] == "completed") status->lastCompletedSeq = seq;
  if (f[9] == "completed" || f[9] == "timedout") recorder.retire_id(id, true);
}

// A double of HeartbeatMonitor::runLoop (torch 2.13): makes the pipe, looks at it once a second, and
// dumps for whatever is written to it.
static void serve(Recorder& recorder, const std::vector<std::string>& f) {
  prctl(PR_SET_NAME, "pt_nccl_heartbt");
  mkfifo(f[1].c_str(), 0666);
  const int pipe = open(f[1].c_str(), O_RDONLY | O_NONBLOCK);
  std::cout << "ready" << std::endl;
  for (;;) {
    char byte[128];
    if (read(pipe, byte, sizeof byte) > 0) {
      std::ofstream(f[2], std::ios::binary)
          << recorder.dump(std::nullopt, true, false, false);
    }
    sleep(1);
  }
}

int main() {
  auto recorder = std::make_unique<Recorder>();
  std::map<size_t, std::shared_ptr<c10d::ProcessGroupStatus>> status;
  for (std::string line; std::getline(std::cin, line);) {
    const auto fields = split(line, '\t');
    if (fields[0] == "new") {
      recorder = std::make_unique<Recorder>();
      status.clear();
      recorder->record_accelerator_version("2.27.5");
    } else if (fields[0] == "group") {
      std::vector<uint64_t> ranks;
      for (const auto& rank : split(fields[3], ',')) ranks.push_back(std::stoul(rank));
      recorder->record_pg_ranks({fields[1], fields[2]}, ranks);
    } else if (fields[0] == "call") {
      call(*recorder, status, fields);
    } else if (fields[0] == "serve") {
      std::thread([&] { serve(*recorder, fields); }).join();
    } else {
      std::ofstream(fields[1], std::ios::binary)
          << recorder->dump(std::nullopt, true, false, false);
    }
  }
}
