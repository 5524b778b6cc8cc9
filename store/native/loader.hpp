// A loader: batches of one table prepared ahead, in order, by a thread that needs no interpreter.
//
// Batch b of the loader uses Philox(seed, stream, b) whoever prepares it and whenever, so with an unchanged table the depth
// changes nothing. At hand-over the table is looked at once more: a batch whose distribution has moved too far since it was
// drawn is thrown away and drawn again, with the same numbers, by the thread that asked for it.
//
//   producer: prepare (wait for room, claim the next number, draw, gather) -> push
//   consumer: next (wait for the oldest, look at the drift, hand over or draw again)
//
// One producer: the loader's own thread, or a thread of the caller's that does more to each batch between `prepare` and
// `push`. Consumers take turns. In a forked child a loader is inert.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "sampler.hpp"
#include "staging.hpp"

namespace conduit {

struct LoaderSettings {
  std::uint32_t n = 0, stream = 0;
  std::uint64_t first = 0;      // number of the first batch
  std::uint32_t depth = 0;      // batches that may be ready or in preparation; 0 = prepare each at the call
  std::uint32_t most = 0;       // automatic: depth follows p95(prepare) / compute, up to this; 0 = depth is fixed
  std::optional<double> max_drift;  // enforced at hand-over; 0 = a batch is as if drawn at hand-over
  bool measured = true;         // look at the drift even where nothing is enforced
  bool own_thread = true;       // false: the caller's thread is the producer
  std::uint64_t most_bytes = ~std::uint64_t{0};  // of batches that are ready, whose sizes may differ: with these no further one is begun
};

// A batch that is ready, or was handed over.
struct Prepared {
  std::shared_ptr<Staging> staging;
  std::uint64_t number = 0;
  std::uint64_t token = 0;       // names this preparation; 0 = prepared by the consumer, at the call
  std::uint64_t rewinds = 0;     // of the loader when it was claimed
  std::uint64_t began_ns = 0, prepare_ns = 0;
  DrawMark mark;
  Drawn drawn;
  Reservation held;              // counted as samples from the draw on; returns where the batch is not handed over
};

struct LoaderMetrics {
  std::uint64_t batches = 0, redrawn = 0, exposed_ns = 0, hidden_ns = 0;
  std::uint32_t depth = 0, ready = 0;
  double drift_last = 0.0, drift_max = 0.0, drift_sum = 0.0;
};

enum class PrepareStatus { ready, idle, stopped };

class Loader {
 public:
  Loader(std::shared_ptr<TableCore> table, Plan plan, LoaderSettings settings, std::shared_ptr<StagingPool> pool);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Waits up to `slice_ns` for the next batch; false when there is none yet, and `state()` then says what a draw lacked.
  // `began_ns`: when the caller began to wait, maybe some slices ago. `discarded`: tokens that will never be handed over.
  // Throws closed, forked, and what a producer died of.
  bool next(std::uint64_t began_ns, std::uint64_t slice_ns, Prepared* out, std::vector<std::uint64_t>* discarded);
  // The caller gave up on a wait that began then.
  void gave_up(std::uint64_t began_ns);
  // What the caller did to the last batch before it was of use counts as waiting.
  void handed_later();

  PrepareStatus prepare(std::uint64_t slice_ns, Prepared* out);
  // False: the batch is not wanted any more.
  bool push(Prepared batch);
  // The producer has ended, because of what the consumer will be told after the batches that are ready.
  void producer_failed(std::exception_ptr error);

  // Stops and joins the loader's thread. Idempotent, from any thread; calls that wait throw closed.
  void close();
  bool closed();
  void check() const;
  SampleState state();
  LoaderMetrics metrics();
  std::uint64_t number();  // of the next batch to be handed over
  const Plan& plan() const { return plan_; }
  const LoaderSettings& settings() const { return settings_; }
  TableCore& table() const { return *table_; }

 private:
  static constexpr std::size_t kMemory = 64;  // of the latest durations, for the depth

  struct Shared {  // all that another thread may be using when a third forks: a child leaves it alone
    std::mutex mutex;
    std::condition_variable room, filled;
    std::thread thread;
    std::deque<Prepared> ready;
    std::map<std::uint64_t, std::uint64_t> indices;  // by number, of batches drawn and not handed over: Drawn::index
    std::exception_ptr error;
    bool started = false, stop = false, consuming = false;
    std::uint64_t next_number = 0, handed = 0, rewinds = 0, tokens = 0;
    std::uint32_t depth = 0;
    SampleState state;
    LoaderMetrics metrics;
    std::array<std::uint64_t, kMemory> prepare_ns{}, compute_ns{};
    std::uint64_t hand_overs = 0, last_hand_over_ns = 0;
    std::uint64_t filled_ns = 0;  // when the batch that is being handed over was there
    std::mutex closing;
    std::unique_ptr<Sampler> producer;
  };
  using Lock = std::unique_lock<std::mutex>;

  void run();
  bool room() const;  // under the lock, for one more batch
  bool draw(Sampler& sampler, std::uint64_t number, std::uint64_t slice_ns, Prepared* out);
  bool next_prepared(Lock& lock, std::uint64_t slice_ns, Prepared* out, double* drift, std::vector<std::uint64_t>* discarded);
  bool next_now(Lock& lock, std::uint64_t slice_ns, Prepared* out);
  void undo(const Prepared& batch);
  bool too_far(const DriftSince& since) const;
  void hand_over(const Prepared& batch, std::uint64_t began_ns, double drift);
  void adapt();
  [[noreturn]] void throw_closed() const;

  std::shared_ptr<TableCore> table_;
  Plan plan_;
  LoaderSettings settings_;
  std::shared_ptr<StagingPool> pool_;
  std::uint32_t forks_;
  Sampler consumer_;
  Shared* shared_;
};

}  // namespace conduit
