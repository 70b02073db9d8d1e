// What a capture forbids: calls on the capturing thread and on another, in each mode, and how
// captures end. Every line is an error code that the driver documents or that was seen on a real
// one, but for copies behind work, of which only the smallest were.
#include <pthread.h>

#include "check.h"

__global__ void add(int *p, int n) { *p += n; }

__global__ void spin(int *p, int n)
{
    for (int i = 0; i < n; i++)
        *(volatile int *)p = i;
}

enum { LARGE = 1 << 20, SIDE = 64 };

static int *word;
static char *pageable, *pinned, *large;
static cudaArray_t array;
static cudaStream_t stream, blocking;

static const char *name(cudaError_t e)
{
    return cudaGetErrorName(e);
}

// finish_capture ends the capture and says how.
static void finish_capture(const char *what, cudaError_t e, cudaStream_t s)
{
    cudaStreamCaptureStatus status;
    cudaError_t asked = cudaStreamIsCapturing(s, &status);
    cudaGraph_t graph = nullptr;
    cudaError_t end = cudaStreamEndCapture(s, &graph);
    printf("%s: %s, then status %d (%s), end %s, graph %s\n", what, name(e), asked == cudaSuccess ? (int)status : -1, name(asked),
           name(end), graph ? "yes" : "no");
    if (graph)
        CUDA(cudaGraphDestroy(graph));
    cudaGetLastError();
}

static void begin(cudaStreamCaptureMode mode, cudaStream_t s)
{
    CUDA(cudaStreamBeginCapture(s, mode));
    add<<<1, 1, 0, s>>>(word, 1);
    CUDA(cudaGetLastError());
}

// work gives a stream that the default one waits for something to do.
static void work()
{
    spin<<<1, 1, 0, blocking>>>(word + 2, 1000);
}

static const struct {
    const char *name;
    cudaError_t (*call)();
} calls[] = {
    {"malloc", [] { void *p = nullptr; cudaError_t e = cudaMalloc(&p, 1 << 20); if (p) cudaFree(p); return e; }},
    {"malloc host", [] { void *p = nullptr; cudaError_t e = cudaMallocHost(&p, 1 << 20); if (p) cudaFreeHost(p); return e; }},
    {"device sync", [] { return cudaDeviceSynchronize(); }},
    {"stream sync", [] { return cudaStreamSynchronize(stream); }},
    {"stream query", [] { return cudaStreamQuery(stream); }},
    {"legacy sync", [] { return cudaStreamSynchronize(cudaStreamLegacy); }},
    {"legacy query", [] { return cudaStreamQuery(cudaStreamLegacy); }},
    {"other sync", [] { return cudaStreamSynchronize(blocking); }},
    {"other query", [] { return cudaStreamQuery(blocking); }},
    {"memcpy", [] { int v = 0; return cudaMemcpy(word + 1, &v, 4, cudaMemcpyHostToDevice); }},
    {"memcpy back", [] { int v = 0; return cudaMemcpy(&v, word + 1, 4, cudaMemcpyDeviceToHost); }},
    {"memset", [] { return cudaMemset(word + 1, 0, 4); }},
    {"legacy launch", [] { add<<<1, 1, 0, cudaStreamLegacy>>>(word, 1); return cudaGetLastError(); }},
    {"event create", [] { cudaEvent_t e; cudaError_t r = cudaEventCreate(&e); cudaEventDestroy(e); return r; }},
    {"event query", [] {
        cudaEvent_t e;
        cudaEventCreate(&e);
        cudaEventRecord(e, blocking);
        cudaError_t r = cudaEventQuery(e);
        cudaEventDestroy(e);
        return r == cudaErrorNotReady ? cudaSuccess : r;
    }},
    {"event sync", [] {
        cudaEvent_t e;
        cudaEventCreate(&e);
        cudaEventRecord(e, blocking);
        cudaError_t r = cudaEventSynchronize(e);
        cudaEventDestroy(e);
        return r;
    }},
    {"captured event", [] {
        cudaEvent_t e;
        cudaEventCreate(&e);
        cudaEventRecord(e, stream);
        cudaError_t r = cudaEventQuery(e);
        cudaEventDestroy(e);
        return r;
    }},
    {"captured event sync", [] {
        cudaEvent_t e;
        cudaEventCreate(&e);
        cudaEventRecord(e, stream);
        cudaError_t r = cudaEventSynchronize(e);
        cudaEventDestroy(e);
        return r;
    }},
    {"stream create", [] { cudaStream_t s; cudaError_t e = cudaStreamCreate(&s); cudaStreamDestroy(s); return e; }},
    {"begin again", [] { return cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal); }},
    {"isolation", [] {
        cudaEvent_t e;
        cudaEventCreate(&e);
        cudaEventRecord(e, blocking);
        cudaError_t r = cudaStreamWaitEvent(stream, e, 0);
        cudaEventDestroy(e);
        return r;
    }},
    {"end of another", [] { cudaGraph_t g; return cudaStreamEndCapture(blocking, &g); }},
    {"relaxed malloc", [] {
        cudaStreamCaptureMode m = cudaStreamCaptureModeRelaxed;
        cudaThreadExchangeStreamCaptureMode(&m);
        void *p = nullptr;
        cudaError_t e = cudaMalloc(&p, 1 << 20);
        if (p)
            cudaFree(p);
        cudaThreadExchangeStreamCaptureMode(&m);
        return e;
    }},
    {"memcpy behind work", [] { int v = 0; work(); return cudaMemcpy(word + 1, &v, 4, cudaMemcpyHostToDevice); }},
    {"memcpy back behind work", [] { int v = 0; work(); return cudaMemcpy(&v, word + 1, 4, cudaMemcpyDeviceToHost); }},
    {"large memcpy behind work", [] { work(); return cudaMemcpy(large, pageable, LARGE, cudaMemcpyHostToDevice); }},
    {"large memcpy back behind work", [] { work(); return cudaMemcpy(pageable, large, LARGE, cudaMemcpyDeviceToHost); }},
    {"pinned memcpy behind work", [] { work(); return cudaMemcpy(large, pinned, LARGE, cudaMemcpyDefault); }},
    {"pinned memcpy back behind work", [] { work(); return cudaMemcpy(pinned, large, LARGE, cudaMemcpyDefault); }},
    {"memcpy from host to host", [] { work(); return cudaMemcpy(pinned, pageable, LARGE, cudaMemcpyDefault); }},
    {"rows behind work", [] { work(); return cudaMemcpy2D(large, 128, pageable, 256, 100, SIDE, cudaMemcpyDefault); }},
    {"rows back behind work", [] { work(); return cudaMemcpy2D(pageable, 256, large, 128, 100, SIDE, cudaMemcpyDefault); }},
    {"pinned rows behind work", [] { work(); return cudaMemcpy2D(large, 128, pinned, 256, 100, SIDE, cudaMemcpyDefault); }},
    {"pinned rows back behind work", [] { work(); return cudaMemcpy2D(pinned, 256, large, 128, 100, SIDE, cudaMemcpyDefault); }},
    {"to an array behind work", [] { work(); return cudaMemcpy2DToArray(array, 0, 0, pageable, SIDE * 4, SIDE * 4, SIDE, cudaMemcpyDefault); }},
    {"from an array behind work", [] { work(); return cudaMemcpy2DFromArray(pageable, SIDE * 4, array, 0, 0, SIDE * 4, SIDE, cudaMemcpyDefault); }},
    {"pinned to an array behind work", [] { work(); return cudaMemcpy2DToArray(array, 0, 0, pinned, SIDE * 4, SIDE * 4, SIDE, cudaMemcpyDefault); }},
    {"memset of the host behind work", [] { work(); return cudaMemset(pinned, 1, LARGE); }},
    {"relaxed malloc host", [] {
        cudaStreamCaptureMode m = cudaStreamCaptureModeRelaxed;
        cudaThreadExchangeStreamCaptureMode(&m);
        void *p = nullptr;
        cudaError_t e = cudaMallocHost(&p, 1 << 20);
        if (p)
            e = cudaFreeHost(p);
        cudaThreadExchangeStreamCaptureMode(&m);
        return e;
    }},
    {"mem info", [] { size_t a, b; return cudaMemGetInfo(&a, &b); }},
};

static const char *const modes[] = {"global", "thread", "relaxed"};

static void same_thread()
{
    for (int mode = 0; mode < 3; mode++)
        for (auto &c : calls) {
            begin((cudaStreamCaptureMode)mode, stream);
            char text[96];
            snprintf(text, sizeof text, "%s, %s", modes[mode], c.name);
            finish_capture(text, c.call(), stream);
        }
}

static cudaError_t other_result;

static void other_thread()
{
    for (int mode = 0; mode < 3; mode++)
        for (auto &c : calls) {
            begin((cudaStreamCaptureMode)mode, stream);
            pthread_t t;
            pthread_create(&t, nullptr, [](void *p) -> void * {
                cudaSetDevice(0);
                other_result = (*(cudaError_t(**)())p)();
                return nullptr;
            }, (void *)&c.call);
            pthread_join(t, nullptr);
            char text[96];
            snprintf(text, sizeof text, "%s, %s by another", modes[mode], c.name);
            finish_capture(text, other_result, stream);
        }
}

static void wrong_thread()
{
    for (int mode = 0; mode < 3; mode++) {
        begin((cudaStreamCaptureMode)mode, stream);
        pthread_t t;
        pthread_create(&t, nullptr, [](void *) -> void * {
            cudaSetDevice(0);
            cudaGraph_t g = nullptr;
            other_result = cudaStreamEndCapture(stream, &g);
            if (g)
                cudaGraphDestroy(g);
            return nullptr;
        }, nullptr);
        pthread_join(t, nullptr);
        finish_capture(modes[mode], other_result, stream);
    }
}

static void blocking_stream()
{
    static const int which[] = {5, 6, 9, 11, 12, 2};
    for (int mode = 0; mode < 3; mode++)
        for (int i : which) {
            begin((cudaStreamCaptureMode)mode, blocking);
            char text[96];
            snprintf(text, sizeof text, "blocking stream, %s, %s", modes[mode], calls[i].name);
            finish_capture(text, calls[i].call(), blocking);
        }
}

static void unjoined()
{
    cudaEvent_t fork;
    cudaStream_t side;
    CUDA(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    CUDA(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    begin(cudaStreamCaptureModeGlobal, stream);
    CUDA(cudaEventRecord(fork, stream));
    CUDA(cudaStreamWaitEvent(side, fork, 0));
    add<<<1, 1, 0, side>>>(word, 1);
    finish_capture("unjoined", cudaGetLastError(), stream);
    cudaStreamCaptureStatus st;
    CUDA(cudaStreamIsCapturing(side, &st));
    printf("side stream afterwards: %d\n", (int)st);
    begin(cudaStreamCaptureModeGlobal, stream);
    CUDA(cudaEventRecord(fork, stream));
    CUDA(cudaStreamWaitEvent(side, fork, 0));
    cudaGraph_t g;
    finish_capture("end on the side", cudaStreamEndCapture(side, &g), stream);
    begin(cudaStreamCaptureModeGlobal, stream);
    begin(cudaStreamCaptureModeGlobal, side);
    CUDA(cudaEventRecord(fork, stream));
    cudaError_t merge = cudaStreamWaitEvent(side, fork, 0);
    cudaGraph_t a = nullptr;
    cudaError_t end = cudaStreamEndCapture(side, &a);
    printf("merge: %s, end %s\n", name(merge), name(end));
    finish_capture("merged", cudaSuccess, stream);
    CUDA(cudaStreamDestroy(side));
    CUDA(cudaEventDestroy(fork));
}

int main()
{
    note_device();
    CUDA(cudaMalloc(&word, 64));
    CUDA(cudaMemset(word, 0, 64));
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaStreamCreate(&blocking));
    CUDA(cudaMalloc(&large, LARGE));
    CUDA(cudaMallocHost(&pinned, LARGE));
    pageable = (char *)calloc(1, LARGE);
    cudaChannelFormatDesc format = cudaCreateChannelDesc<int>();
    CUDA(cudaMallocArray(&array, &format, SIDE, SIDE));
    spin<<<1, 1, 0, blocking>>>(word + 2, 0);
    add<<<1, 1, 0, stream>>>(word, 0);
    CUDA(cudaDeviceSynchronize());
    same_thread();
    other_thread();
    wrong_thread();
    blocking_stream();
    unjoined();
    CUDA(cudaDeviceSynchronize());
    return finish();
}
