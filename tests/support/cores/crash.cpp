// Ends as its argument says, to leave a core. A double: NCCL is not here, so functions of torch's
// ProcessGroupNCCL are only named like those that are on the stack when its watchdog ends a rank
// (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, torch 2.1 and 2.8). Everything else is real.
#include <cassert>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <new>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

namespace c10d {
struct ProcessGroupNCCL {
  struct WorkNCCL {
    __attribute__((noinline)) void handleException() {
      throw std::runtime_error("[Rank 3] Watchdog caught collective operation timeout");
    }
  };
  struct Watchdog {
    __attribute__((noinline)) void runLoop() { WorkNCCL().handleException(); }
    __attribute__((noinline)) void run() noexcept { runLoop(); }
  };
  __attribute__((noinline)) void heartbeatMonitor() { abort(); }
};
} // namespace c10d

__attribute__((noinline)) int deeper(volatile int depth) {
  volatile char room[256];
  room[depth % 256] = 1;
  return deeper(depth + 1) + room[0];
}

static void mapped(const char *path) {
  int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
  char *memory = static_cast<char *>(mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  unlink(path);
  memory[0] = 1; // the file has no byte: as where shared memory has no room
}

int main(int argc, char **argv) {
  std::string how = argc > 1 ? argv[1] : "";
  if (how == "watchdog") {
    std::thread([] { c10d::ProcessGroupNCCL::Watchdog().run(); }).join();
  } else if (how == "heartbeat-monitor") {
    std::thread([] { c10d::ProcessGroupNCCL().heartbeatMonitor(); }).join();
  } else if (how == "uncaught-exception") {
    throw std::logic_error("nobody catches this");
  } else if (how == "out-of-memory") {
    volatile size_t size = size_t(1) << 60;
    memset(new char[size], 1, 1);
  } else if (how == "assertion") {
    assert(argc == 7 && "seven");
  } else if (how == "heap-corruption") {
    void *block = malloc(2000);
    void *volatile again = block;
    free(block);
    free(again);
  } else if (how == "stack-overflow") {
    return deeper(0);
  } else if (how == "shared-memory-full") {
    mapped(argv[2]);
  } else if (how == "null-pointer") {
    *static_cast<volatile int *>(nullptr) = 1;
  } else {
    write(1, ".", 1);
    pause();
  }
}
