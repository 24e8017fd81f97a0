/* A libnvidia-ml.so.1 without GPUs. It asks the unix socket named by NVML_STUB_SOCKET:
   one byte for the question, one for the GPU's index, 32 for the nonce; the reply is bytes up
   to the end of the connection, none for an error. Who gets no reply hangs, as a GPU may. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { OK = 0, INVALID_ARGUMENT = 2, UNKNOWN = 999 };
typedef struct { unsigned environment, cc, devtools; } State;
typedef struct {
    unsigned cec_present, size, cec_size;
    unsigned char nonce[32], report[0x2000], cec[0x1000];
} Report;
typedef struct {
    unsigned size, attestation_size;
    unsigned char chain[0x1000], attestation[0x1400];
} Certificate;

static ssize_t ask(char what, void *gpu, const unsigned char *nonce, void *into, size_t room) {
    struct sockaddr_un place = {.sun_family = AF_UNIX};
    char request[34] = {what, gpu ? (char)((uintptr_t)gpu - 1) : 0};
    const char *path = getenv("NVML_STUB_SOCKET");
    size_t got = 0;
    ssize_t count = -1;
    int one = socket(AF_UNIX, SOCK_STREAM, 0);
    if (nonce) memcpy(request + 2, nonce, 32);
    strncpy(place.sun_path, path ? path : "", sizeof place.sun_path - 1);
    if (!connect(one, (struct sockaddr *)&place, sizeof place) && write(one, request, 34) == 34)
        while (got < room && (count = read(one, (char *)into + got, room - got)) > 0) got += count;
    close(one);
    return count < 0 || !got ? -1 : (ssize_t)got;
}

static int text(char what, void *gpu, char *into, unsigned room) {
    ssize_t got = ask(what, gpu, 0, into, room - 1);
    if (got < 0) return UNKNOWN;
    into[got] = 0;
    return OK;
}

int nvmlInit_v2(void) {
    char byte;
    return ask('n', 0, 0, &byte, 1) == 1 ? OK : UNKNOWN;
}
int nvmlInitWithFlags(unsigned flags) { (void)flags; return nvmlInit_v2(); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int error) { return error == UNKNOWN ? "Unknown Error" : "Error"; }
int nvmlSystemGetDriverVersion(char *into, unsigned room) { return text('d', 0, into, room); }
int nvmlDeviceGetName(void *gpu, char *into, unsigned room) { return text('m', gpu, into, room); }
int nvmlDeviceGetUUID(void *gpu, char *into, unsigned room) { return text('u', gpu, into, room); }

int nvmlDeviceGetCount_v2(unsigned *count) {
    unsigned char byte;
    if (ask('n', 0, 0, &byte, 1) != 1) return UNKNOWN;
    *count = byte;
    return OK;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **gpu) {
    unsigned count;
    if (nvmlDeviceGetCount_v2(&count)) return UNKNOWN;
    *gpu = (void *)(uintptr_t)(index + 1);
    return index < count ? OK : INVALID_ARGUMENT;
}
int nvmlDeviceGetArchitecture(void *gpu, unsigned *arch) {
    unsigned char byte;
    if (ask('a', gpu, 0, &byte, 1) != 1) return UNKNOWN;
    *arch = byte;
    return OK;
}
int nvmlSystemGetConfComputeState(State *state) {
    unsigned char bytes[3];
    if (ask('s', 0, 0, bytes, 3) != 3) return UNKNOWN;
    *state = (State){bytes[0], bytes[1], bytes[2]};
    return OK;
}
int nvmlDeviceGetConfComputeGpuAttestationReport(void *gpu, Report *into) {
    ssize_t got = ask('r', gpu, into->nonce, into->report, sizeof into->report);
    into->size = got < 0 ? 0 : (unsigned)got;
    return got < 0 ? UNKNOWN : OK;
}
int nvmlDeviceGetConfComputeGpuCertificate(void *gpu, Certificate *into) {
    ssize_t got = ask('c', gpu, 0, into->attestation, sizeof into->attestation);
    into->attestation_size = got < 0 ? 0 : (unsigned)got;
    return got < 0 ? UNKNOWN : OK;
}
