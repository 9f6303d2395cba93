// Streams and events of the emulated machine. Part of machine.cpp.
//
// Each stream has a thread, which does its work in order and not before it must: when the host waits for the stream or asks
// for an event again and again, when another stream waits for an event of it, or when a collective of another rank needs it.
// What no event orders therefore comes out wrong, every time. MACHINE_DELAYS=17 turns this around: work begins at once,
// after a pause drawn from that seed, so that what no event orders comes out in any order. MACHINE_LAST=exchanges (or passes)
// lets the host ask long before streams of high (or normal) priority are seen to work: the other streams then come first.
// MACHINE_FORGET=3 lets each device ignore its third wait of a stream for an event.
namespace {

std::mutex& clockwork = everlasting<std::mutex>(); // guards all queues; never held while work is done
std::condition_variable& turned = everlasting<std::condition_variable>();

struct Stream {
    std::deque<std::function<void()>> queue;
    unsigned long long queued = 0, done = 0, wanted = 0, random = 0;
    bool ends = false, urgent = false;
    std::thread worker;
};

// When a recorded event was passed, in nanoseconds of the device's clock; 0 before.
struct Moment {
    unsigned long long time = 0;
};

struct Event {
    bool timed = false;
    Stream* stream = nullptr;
    unsigned long long position = 0;
    std::shared_ptr<Moment> moment;
    int asked = 0;
};

unsigned long long now() {
    return (unsigned long long)std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

long delays() {
    static const long seed = setting("MACHINE_DELAYS", 0);
    return seed;
}

// Up to 0.3 ms, most of them short.
void pause(Stream* stream) {
    stream->random = stream->random * 6364136223846793005ull + 1442695040888963407ull;
    unsigned long long draw = stream->random >> 33;
    if (draw % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(draw / 4 % 300));
}

void live(Stream* stream) {
    std::unique_lock<std::mutex> guard(clockwork);
    for (;;) {
        turned.wait(guard, [&] { return stream->ends || (stream->done < stream->queued && (delays() || stream->done < stream->wanted)); });
        if (stream->done == stream->queued && stream->ends) return;
        std::function<void()> work = std::move(stream->queue.front());
        stream->queue.pop_front();
        guard.unlock();
        if (delays()) pause(stream);
        work();
        work = nullptr;
        guard.lock();
        ++stream->done;
        turned.notify_all();
    }
}

// Puts work at a stream's end and says which position it has.
unsigned long long put(Stream* stream, std::function<void()> work) {
    std::lock_guard<std::mutex> guard(clockwork);
    if (!stream->worker.joinable()) {
        static unsigned long long number;
        stream->random = (unsigned long long)delays() * 1000003 + ++number;
        stream->worker = std::thread(live, stream);
    }
    stream->queue.push_back(std::move(work));
    turned.notify_all();
    return ++stream->queued;
}

// Lets a stream work up to a position.
void want(Stream* stream, unsigned long long position) {
    std::lock_guard<std::mutex> guard(clockwork);
    if (position > stream->wanted) stream->wanted = position;
    turned.notify_all();
}

// Waits until a stream has worked up to a position.
void drain(Stream* stream, unsigned long long position) {
    std::unique_lock<std::mutex> guard(clockwork);
    if (position > stream->wanted) stream->wanted = position;
    turned.notify_all();
    turned.wait(guard, [&] { return stream->done >= position; });
}

void drain(Stream* stream) {
    std::unique_lock<std::mutex> guard(clockwork);
    unsigned long long all = stream->queued;
    guard.unlock();
    drain(stream, all);
}

// Ends a stream's thread after all of its work.
void end(Stream* stream) {
    drain(stream);
    {
        std::lock_guard<std::mutex> guard(clockwork);
        stream->ends = true;
        turned.notify_all();
    }
    if (stream->worker.joinable()) stream->worker.join();
}

void record(Event* event, Stream* stream) {
    auto moment = std::make_shared<Moment>();
    unsigned long long position = put(stream, [moment] {
        unsigned long long time = now();
        std::lock_guard<std::mutex> guard(clockwork);
        moment->time = time;
    });
    event->stream = stream;
    event->position = position;
    event->moment = moment;
    event->asked = 0;
}

unsigned long long time_of(const Event* event) {
    std::lock_guard<std::mutex> guard(clockwork);
    return event->moment ? event->moment->time : 0;
}

// Whether an event was passed. Who asks often enough does wait for it.
bool passed(Event* event) {
    static const char* last = getenv("MACHINE_LAST");
    if (!event->stream) return true;
    int patience = !last ? 8 : (!strcmp(last, "exchanges") == event->stream->urgent) ? 200 : 2;
    if (++event->asked > patience) want(event->stream, event->position);
    std::lock_guard<std::mutex> guard(clockwork);
    return event->stream->done >= event->position;
}

} // namespace
