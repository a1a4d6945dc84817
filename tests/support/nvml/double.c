/* A double of libnvidia-ml.so.1 for tests, at the level of its ABI (nvml.h, CUDA 13).
 *
 * It is no GPU and was never compared with one. What it says is read from the file named by
 * HANGTOP_NVML_DOUBLE, again whenever it has changed, lines of `KEY=VALUE`, where KEY is `GPU.NAME` or a NAME for all
 * GPUs; a value that is not given has the default of the call. A NAME that is a function with the
 * value `error=CODE` makes that function fail, `hang` makes it never return; `all=error=15` does so
 * for every function that gets the GPU.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SUPPORTED 64
typedef unsigned long long u64;
struct device { int index, mig; };
static struct device devices[SUPPORTED];
static struct device parts[SUPPORTED][8];
static int told; /* Xids that were handed out */

/* What the file says now; it is read again when it is another one, or was written to. */
static const char *said(void) {
    static char text[1 << 16];
    static struct stat last;
    const char *path = getenv("HANGTOP_NVML_DOUBLE");
    struct stat now;
    FILE *file;
    if (!path || stat(path, &now)) return "";
    if (now.st_ino == last.st_ino && now.st_size == last.st_size &&
        !memcmp(&now.st_mtim, &last.st_mtim, sizeof now.st_mtim)) return text;
    file = fopen(path, "r");
    if (!file) return "";
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    last = now;
    return text;
}

static const char *find(int gpu, const char *name, char *value, size_t size) {
    char exact[96], any[96];
    int found = 0;
    snprintf(exact, sizeof exact, "%d.%s=", gpu, name);
    snprintf(any, sizeof any, "%s=", name);
    for (const char *line = said(), *next; *line; line = next) {
        int is_exact = !strncmp(line, exact, strlen(exact));
        size_t end = strcspn(line, "\n"), skip = strlen(is_exact ? exact : any);
        next = line + end + (line[end] == '\n');
        if (!is_exact && (found == 2 || strncmp(line, any, skip))) continue;
        snprintf(value, size, "%.*s", (int)(end - skip), line + skip);
        found = is_exact ? 2 : 1;
    }
    return found ? value : NULL;
}

static u64 number(int gpu, const char *name, u64 otherwise) {
    char value[512];
    return find(gpu, name, value, sizeof value) ? strtoull(value, NULL, 0) : otherwise;
}

static int fate(int gpu, const char *function) {
    const char *names[] = {function, "all"};
    char value[512];
    for (int i = 0; i < (gpu < 0 ? 1 : 2); i++) {
        if (!find(gpu, names[i], value, sizeof value)) continue;
        if (!strcmp(value, "hang")) for (;;) pause();
        if (!strncmp(value, "error=", 6)) return atoi(value + 6);
    }
    return 0;
}

#define ENTER(gpu) do { int code = fate(gpu, __func__); if (code) return code; } while (0)
#define COUNT ((int)number(-1, "count", 2))
#define GET(function, type, name, otherwise) \
    int function(struct device *d, type *out) { \
        ENTER(d->index); *out = (type)number(d->index, name, otherwise); return 0; }

const char *nvmlErrorString(int code) {
    switch (code) {
    case 9: return "Driver Not Loaded";
    case 15: return "GPU is lost";
    default: return "an error of the double";
    }
}
int nvmlInitWithFlags(unsigned flags) { ENTER(-1); return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    ENTER(-1); snprintf(text, size, "575.51.03"); return 0;
}
int nvmlSystemGetCudaDriverVersion(int *version) { ENTER(-1); *version = 12090; return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { ENTER(-1); *count = COUNT; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **out) {
    ENTER((int)index);
    if (index >= (unsigned)COUNT) return 2;
    devices[index] = (struct device){(int)index, -1};
    *out = &devices[index];
    return 0;
}
int nvmlDeviceGetIndex(struct device *d, unsigned *out) { ENTER(d->index); *out = d->index; return 0; }
int nvmlDeviceGetName(struct device *d, char *text, unsigned size) {
    char value[512];
    ENTER(d->index);
    snprintf(text, size, "%s", find(d->index, "name", value, sizeof value) ? value
                                                                           : "Double of a GPU");
    return 0;
}
int nvmlDeviceGetUUID(struct device *d, char *text, unsigned size) {
    ENTER(d->index);
    if (d->mig < 0) snprintf(text, size, "GPU-0d0b1e00-0000-0000-0000-%012d", d->index);
    else snprintf(text, size, "MIG-0d0b1e00-0000-0000-%04d-%012d", d->mig, d->index);
    return 0;
}
int nvmlDeviceGetSerial(struct device *d, char *text, unsigned size) {
    ENTER(d->index); snprintf(text, size, "165012300000%d", d->index); return 0;
}
struct pci { char old[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
int nvmlDeviceGetPciInfo_v3(struct device *d, struct pci *out) {
    ENTER(d->index);
    memset(out, 0, sizeof *out);
    out->bus = 0x1b + d->index;
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", out->bus);
    return 0;
}
GET(nvmlDeviceGetEnforcedPowerLimit, unsigned, "power_limit", 700000)
GET(nvmlDeviceGetPowerUsage, unsigned, "power", 520000)
GET(nvmlDeviceGetTotalEnergyConsumption, u64, "energy", 1000000000)
GET(nvmlDeviceGetCurrentClocksEventReasons, u64, "reasons", 0)
GET(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, "pcie_max_gen", 5)
GET(nvmlDeviceGetMaxPcieLinkWidth, unsigned, "pcie_max_width", 16)
GET(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, "pcie_gen", 5)
GET(nvmlDeviceGetCurrPcieLinkWidth, unsigned, "pcie_width", 16)
GET(nvmlDeviceGetPcieReplayCounter, unsigned, "replays", 0)
GET(nvmlDeviceGetGpuInstanceId, unsigned, "gi", 1 + d->mig)
GET(nvmlDeviceGetComputeInstanceId, unsigned, "ci", 0)
GET(nvmlDeviceGetMaxMigDeviceCount, unsigned, "mig_places", 7)
int nvmlDeviceGetMaxClockInfo(struct device *d, unsigned kind, unsigned *out) {
    ENTER(d->index); *out = (unsigned)number(d->index, "max_clock", 1980); return 0;
}
int nvmlDeviceGetClockInfo(struct device *d, unsigned kind, unsigned *out) {
    ENTER(d->index);
    *out = (unsigned)number(d->index, kind == 2 ? "memory_clock" : "clock", kind == 2 ? 2619 : 1980);
    return 0;
}
int nvmlDeviceGetTemperature(struct device *d, unsigned sensor, unsigned *out) {
    ENTER(d->index); *out = (unsigned)number(d->index, "temperature", 55); return 0;
}
int nvmlDeviceGetUtilizationRates(struct device *d, unsigned out[2]) {
    ENTER(d->index);
    if (number(d->index, "mig", 0)) return 3; /* as GPUs in MIG mode do */
    out[0] = (unsigned)number(d->index, "util", 97);
    out[1] = (unsigned)number(d->index, "memory_util", 40);
    return 0;
}
int nvmlDeviceGetMemoryInfo(struct device *d, u64 out[3]) {
    ENTER(d->index);
    out[0] = 85520809984ULL;
    out[2] = number(d->index, "memory", 61000000000ULL);
    out[1] = out[0] - out[2];
    return 0;
}
int nvmlDeviceGetTotalEccErrors(struct device *d, unsigned kind, unsigned counter, u64 *out) {
    ENTER(d->index);
    *out = number(d->index, kind == 0 ? "ecc_corrected" : counter == 0 ? "ecc_now" : "ecc_ever", 0);
    return 0;
}
int nvmlDeviceGetRemappedRows(struct device *d, unsigned *right, unsigned *wrong, unsigned *pending,
                              unsigned *failed) {
    ENTER(d->index);
    *right = 0;
    *wrong = (unsigned)number(d->index, "remapped", 0);
    *pending = (unsigned)number(d->index, "remap_pending", 0);
    *failed = (unsigned)number(d->index, "remap_failed", 0);
    return 0;
}
int nvmlDeviceGetPcieThroughput(struct device *d, unsigned counter, unsigned *out) {
    ENTER(d->index); *out = (unsigned)number(d->index, counter ? "pcie_rx" : "pcie_tx", 900); return 0;
}
int nvmlDeviceGetNvLinkState(struct device *d, unsigned link, unsigned *up) {
    char name[32];
    ENTER(d->index);
    if (link >= number(d->index, "links", 18)) return 2;
    snprintf(name, sizeof name, "link%u_down", link);
    *up = !number(d->index, name, 0);
    return 0;
}
int nvmlDeviceGetNvLinkVersion(struct device *d, unsigned link, unsigned *out) {
    ENTER(d->index); *out = 4; return 0;
}
int nvmlDeviceGetNvLinkErrorCounter(struct device *d, unsigned link, unsigned counter, u64 *out) {
    static const char *names[] = {"replay", "recovery", "crc_flit", "crc_data"};
    char name[48];
    ENTER(d->index);
    if (counter > 3) return 3;
    snprintf(name, sizeof name, "link%u_%s", link, names[counter]);
    *out = number(d->index, name, 0);
    return 0;
}
struct field { uint32_t id, scope; int64_t at, took; uint32_t type; int result; u64 value; };
int nvmlDeviceGetFieldValues(struct device *d, int count, struct field *values) {
    ENTER(d->index);
    for (int i = 0; i < count; i++) {
        values[i].result = 3;
        if (values[i].id == 138 || values[i].id == 139) { /* NVLINK_THROUGHPUT_DATA_TX and _RX */
            values[i].result = 0;
            values[i].value = number(d->index, "nvlink_kb", 1000000);
        }
    }
    return 0;
}
struct fabric { uint32_t version; unsigned char cluster[16]; uint32_t status, clique; unsigned char state;
                uint32_t health; };
int nvmlDeviceGetGpuFabricInfoV(struct device *d, struct fabric *out) {
    ENTER(d->index);
    out->status = (uint32_t)number(d->index, "fabric_status", 0);
    out->state = (unsigned char)number(d->index, "fabric", 3);
    return 0;
}
struct process { unsigned pid; u64 memory; unsigned gi, ci; };
int nvmlDeviceGetComputeRunningProcesses_v3(struct device *d, unsigned *count, struct process *out) {
    char value[512], name[32], *next;
    unsigned room = *count;
    ENTER(d->index);
    if (d->mig < 0) snprintf(name, sizeof name, "pids");
    else snprintf(name, sizeof name, "mig%d_pids", d->mig);
    *count = 0;
    if (!find(d->index, name, value, sizeof value)) return 0;
    for (next = strtok(value, ","); next; next = strtok(NULL, ",")) {
        if (*count < room && out) out[*count] = (struct process){(unsigned)atoi(next), 60000000000ULL, 0, 0};
        (*count)++;
    }
    return *count > room || !out ? 7 : 0; /* NVML_ERROR_INSUFFICIENT_SIZE */
}
int nvmlDeviceGetMigMode(struct device *d, unsigned *now, unsigned *pending) {
    ENTER(d->index); *now = *pending = number(d->index, "mig", 0) > 0; return 0;
}
int nvmlDeviceGetMigDeviceHandleByIndex(struct device *d, unsigned place, struct device **out) {
    ENTER(d->index);
    if (place >= number(d->index, "mig", 0) || place >= 8) return 6; /* NVML_ERROR_NOT_FOUND */
    parts[d->index][place] = (struct device){d->index, (int)place};
    *out = &parts[d->index][place];
    return 0;
}
int nvmlEventSetCreate(void **set) { ENTER(-1); *set = &told; return 0; }
int nvmlDeviceRegisterEvents(struct device *d, u64 kinds, void *set) { ENTER(d->index); return 0; }
struct event { struct device *device; u64 kind, data; unsigned gi, ci; };
/* `xids=0:79,1:48` are handed out once each, in this order. */
int nvmlEventSetWait_v2(void *set, struct event *out, unsigned milliseconds) {
    char value[512], *next;
    int seen = 0, gpu, xid;
    ENTER(-1);
    if (!find(-1, "xids", value, sizeof value)) return 10; /* NVML_ERROR_TIMEOUT */
    for (next = strtok(value, ","); next; next = strtok(NULL, ",")) {
        if (seen++ < told || sscanf(next, "%d:%d", &gpu, &xid) != 2) continue;
        told++;
        *out = (struct event){&devices[gpu], 8, (u64)xid, 0, 0};
        return 0;
    }
    return 10;
}
