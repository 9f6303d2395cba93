// NCCL on the emulated machine: ranks are threads of one process, each with streams of its own. Part of machine.cpp.
//
// A collective is work of a stream like any other: done when it must be, it then lets the other ranks' streams come to theirs
// and waits for them. A rank that aborts leaves the others waiting. A group whose ranks have not all come is in progress.
namespace {

// Where on a stream something stands.
struct Spot {
    Stream* stream;
    unsigned long long position;
};

struct Op {
    std::vector<const void*> inputs;
    size_t arrived = 0, read = 0;
    std::vector<Spot> spots;
};

// What goes from one rank to another.
struct Way {
    std::deque<std::string> letters;
    std::vector<Spot> sends;
    size_t receives = 0;
};

struct Group {
    size_t size = 0, joined = 0;
    std::mutex mutex;
    std::condition_variable changed;
    std::map<long, Op> ops;
    std::map<std::pair<int, int>, Way> mail;
    std::map<long, std::map<int, std::pair<int, int>>> splits; // of each call: color and key of the ranks
};

struct Comm {
    std::shared_ptr<Group> group;
    std::shared_ptr<std::atomic<bool>> aborted = std::make_shared<std::atomic<bool>>(false);
    int rank = 0;
    long next_op = 0, next_split = 0;
    std::shared_ptr<Group> parent; // of a split one that is not complete yet
    long split = 0;
    int color = 0, old_rank = 0;
};

struct Transfer {
    bool send;
    char* at;
    size_t bytes;
    int peer;
    Comm* comm;
    Stream* stream;
};

auto& groups = everlasting<std::map<std::string, std::shared_ptr<Group>>>();
thread_local int group_depth;
thread_local std::vector<Transfer> transfers;
const int IN_PROGRESS = 7, INVALID_ARGUMENT = 4;

std::shared_ptr<Group> group_of(const std::string& name) {
    std::lock_guard<std::mutex> guard(tables);
    auto& group = groups[name];
    if (!group) group = std::make_shared<Group>();
    return group;
}

size_t width(int kind) { return kind == 9 ? 2 : kind == 8 ? 8 : 4; }

using Aborted = std::shared_ptr<std::atomic<bool>>;

// Waits until all ranks have shown their input, lets `work` read them, and waits until all have read. `false` if this rank
// aborted.
bool meet(std::shared_ptr<Group> group, Aborted aborted, long number, int rank, const void* input, const std::function<void(const std::vector<const void*>&)>& work) {
    std::unique_lock<std::mutex> guard(group->mutex);
    Op& op = group->ops[number];
    op.inputs.resize(group->size);
    op.inputs[(size_t)rank] = input;
    ++op.arrived;
    for (const Spot& spot : op.spots) want(spot.stream, spot.position);
    group->changed.notify_all();
    group->changed.wait(guard, [&] { return op.arrived == group->size || *aborted; });
    if (op.arrived < group->size) return false;
    work(op.inputs);
    ++op.read;
    group->changed.notify_all();
    group->changed.wait(guard, [&] { return op.read == group->size || *aborted; });
    return op.read == group->size;
}

double element_at(const void* data, size_t index, int kind) {
    switch (kind) {
    case 3: return ((const unsigned*)data)[index];
    case 7: return ((const float*)data)[index];
    case 8: return ((const double*)data)[index];
    default: return bf16_to_float(((const unsigned short*)data)[index]);
    }
}

void store_at(std::string& data, size_t index, int kind, double value) {
    char* at = &data[index * width(kind)];
    unsigned whole = (unsigned)value;
    float single = (float)value;
    unsigned short half = float_to_bf16(single);
    memcpy(at, kind == 3 ? (void*)&whole : kind == 7 ? (void*)&single : kind == 8 ? (void*)&value : (void*)&half, width(kind));
}

// Elements first..first + count of the inputs, reduced: 0 is the sum, 2 the maximum, 4 the mean. Sums go in the order of the
// ranks, in double precision for doubles and in single precision for all else; NCCL's order is its own.
std::string reduce(const std::vector<const void*>& inputs, size_t first, size_t count, int kind, int op) {
    std::string out(count * width(kind), '\0');
    for (size_t i = 0; i < count; ++i) {
        double total = element_at(inputs[0], first + i, kind);
        for (size_t rank = 1; rank < inputs.size(); ++rank) {
            double value = element_at(inputs[rank], first + i, kind);
            total = op == 2 ? (value > total ? value : total) : total + value;
            if (op != 2 && (kind == 7 || kind == 9)) total = (float)total;
        }
        store_at(out, i, kind, op == 4 ? total / (double)inputs.size() : total);
    }
    return out;
}

int collective(Comm* comm, void* stream, const void* from, void* to, std::function<std::string(const std::vector<const void*>&, size_t)> result) {
    if (!known(streams, stream)) return INVALID_ARGUMENT;
    auto group = comm->group;
    auto aborted = comm->aborted;
    long number = comm->next_op++;
    int rank = comm->rank;
    unsigned long long position = put((Stream*)stream, [=] {
        std::string bytes;
        auto work = [&](const std::vector<const void*>& inputs) { bytes = result(inputs, (size_t)rank); };
        if (meet(group, aborted, number, rank, from, work)) memcpy(to, bytes.data(), bytes.size());
    });
    std::lock_guard<std::mutex> guard(group->mutex);
    Op& op = group->ops[number];
    op.spots.push_back({(Stream*)stream, position});
    if (op.arrived) want((Stream*)stream, position);
    return 0;
}

int transfer() {
    for (int sends = 1; sends >= 0; --sends)
        for (const Transfer& one : transfers) {
            if (one.send != (sends == 1)) continue;
            auto group = one.comm->group;
            auto way = one.send ? std::make_pair(one.comm->rank, one.peer) : std::make_pair(one.peer, one.comm->rank);
            auto aborted = one.comm->aborted;
            unsigned long long position = put(one.stream, [=] {
                std::unique_lock<std::mutex> guard(group->mutex);
                Way& on = group->mail[way];
                if (one.send) {
                    on.letters.emplace_back(one.at, one.bytes);
                    group->changed.notify_all();
                    return;
                }
                ++on.receives;
                for (size_t i = 0; i < on.receives && i < on.sends.size(); ++i) want(on.sends[i].stream, on.sends[i].position);
                group->changed.wait(guard, [&] { return !on.letters.empty() || *aborted; });
                if (on.letters.empty()) return;
                if (on.letters.front().size() != one.bytes) fail("%zu bytes were sent and %zu are received", on.letters.front().size(), one.bytes);
                memcpy(one.at, on.letters.front().data(), one.bytes);
                on.letters.pop_front();
            });
            if (!one.send) continue;
            std::lock_guard<std::mutex> guard(group->mutex);
            Way& on = group->mail[way];
            on.sends.push_back({one.stream, position});
            if (on.sends.size() <= on.receives) want(one.stream, position);
        }
    transfers.clear();
    return 0;
}

int add_transfer(bool send, void* at, size_t count, int kind, int peer, Comm* comm, void* stream) {
    if (!known(streams, stream) || peer < 0 || (size_t)peer >= comm->group->size) return INVALID_ARGUMENT;
    transfers.push_back({send, (char*)at, count * width(kind), peer, comm, (Stream*)stream});
    return group_depth ? 0 : transfer();
}

// What a communicator is at: complete, or waiting for ranks.
int progress(Comm* comm) {
    if (comm->parent) {
        std::lock_guard<std::mutex> guard(comm->parent->mutex);
        auto& ranks = comm->parent->splits[comm->split];
        if (ranks.size() < comm->parent->size) return IN_PROGRESS;
        int mine = ranks[comm->old_rank].second, before = 0, size = 0;
        for (auto& [rank, entry] : ranks) {
            if (entry.first != comm->color) continue;
            ++size;
            before += entry.second < mine || (entry.second == mine && rank < comm->old_rank);
        }
        comm->rank = before;
        comm->group->size = (size_t)size;
        comm->parent.reset();
        return 0;
    }
    std::lock_guard<std::mutex> guard(comm->group->mutex);
    return comm->group->joined < comm->group->size ? IN_PROGRESS : 0;
}

} // namespace

#define NCCL_FAULT(name) \
    if (int code = fault(#name)) return code

extern "C" {

struct NcclId {
    char bytes[128];
};

int ncclGetVersion(int* version) {
    *version = (int)setting("MACHINE_NCCL", 22809);
    return 0;
}
int ncclGetUniqueId(NcclId* id) {
    NCCL_FAULT(ncclGetUniqueId);
    static int next;
    memset(id, 0, sizeof *id);
    std::lock_guard<std::mutex> guard(tables);
    snprintf(id->bytes, sizeof id->bytes, "group %d", next++);
    return 0;
}
int ncclCommInitRankConfig(Comm** comm, int size, NcclId id, int rank, const void* config) {
    NCCL_FAULT(ncclCommInitRankConfig);
    const unsigned* words = (const unsigned*)config;
    if (words[2] != 0xcafebeef || words[4] != 0) return INVALID_ARGUMENT; // the magic number, and not blocking
    auto group = group_of(id.bytes);
    std::lock_guard<std::mutex> guard(group->mutex);
    group->size = (size_t)size;
    ++group->joined;
    *comm = new Comm;
    (*comm)->group = group;
    (*comm)->rank = rank;
    return IN_PROGRESS;
}
int ncclCommSplit(Comm* comm, int color, int key, Comm** child, const void*) {
    NCCL_FAULT(ncclCommSplit);
    long number = comm->next_split++;
    {
        std::lock_guard<std::mutex> guard(comm->group->mutex);
        comm->group->splits[number][comm->rank] = {color, key};
    }
    if (color < 0) {
        *child = nullptr;
        return 0;
    }
    std::ostringstream name;
    name << comm->group.get() << " split " << number << " color " << color;
    *child = new Comm;
    (*child)->group = group_of(name.str());
    (*child)->parent = comm->group;
    (*child)->split = number;
    (*child)->color = color;
    (*child)->old_rank = comm->rank;
    return 0;
}
int ncclCommGetAsyncError(Comm* comm, int* state) {
    *state = fault("ncclCommGetAsyncError");
    if (!*state) *state = progress(comm);
    return 0;
}
int ncclCommFinalize(Comm*) { return 0; }
int ncclCommDestroy(Comm* comm) {
    delete comm;
    return 0;
}
int ncclCommAbort(Comm* comm) {
    {
        std::lock_guard<std::mutex> guard(comm->group->mutex);
        *comm->aborted = true;
        comm->group->changed.notify_all();
    }
    delete comm;
    return 0;
}
const char* ncclGetErrorString(int code) { return code == 6 ? "remote process exited or there was a network error" : "an error of the emulated NCCL"; }
const char* ncclGetLastError(Comm*) { return "the emulated network"; }
int ncclGroupStart() {
    ++group_depth;
    return 0;
}
int ncclGroupEnd() {
    NCCL_FAULT(ncclGroupEnd);
    if (group_depth == 0) return 5; // ncclInvalidUsage
    return --group_depth ? 0 : transfer();
}
int ncclAllReduce(const void* from, void* to, size_t count, int kind, int op, Comm* comm, void* stream) {
    NCCL_FAULT(ncclAllReduce);
    return collective(comm, stream, from, to, [=](auto& inputs, size_t) { return reduce(inputs, 0, count, kind, op); });
}
int ncclReduceScatter(const void* from, void* to, size_t count, int kind, int op, Comm* comm, void* stream) {
    NCCL_FAULT(ncclReduceScatter);
    return collective(comm, stream, from, to, [=](auto& inputs, size_t rank) { return reduce(inputs, rank * count, count, kind, op); });
}
int ncclAllGather(const void* from, void* to, size_t count, int kind, Comm* comm, void* stream) {
    NCCL_FAULT(ncclAllGather);
    return collective(comm, stream, from, to, [=](auto& inputs, size_t) {
        std::string all;
        for (const void* input : inputs) all.append((const char*)input, count * width(kind));
        return all;
    });
}
int ncclSend(const void* from, size_t count, int kind, int peer, Comm* comm, void* stream) {
    NCCL_FAULT(ncclSend);
    return add_transfer(true, (void*)from, count, kind, peer, comm, stream);
}
int ncclRecv(void* to, size_t count, int kind, int peer, Comm* comm, void* stream) {
    NCCL_FAULT(ncclRecv);
    return add_transfer(false, to, count, kind, peer, comm, stream);
}
} // extern "C"
