/* A load generator: all users connect, then send requests over keep-alive connections.
 *
 *   users PORT USERS ADDRESSES WARM SECONDS TIMEOUT RATE FILE
 *
 * Each connection comes from another one of ADDRESSES loopback addresses, from the first again after the last. FILE
 * holds whole HTTP requests, which are sent in this order, from the first again after the last. With RATE 0 each
 * user sends as soon as it has a response (closed loop). Otherwise RATE requests are due each second, at equal
 * distances, whatever the server does (open loop), and the users take turns: a latency begins when the request was due,
 * so a request that waits for a free user is as slow as it is for a client. The clock is looked at once a millisecond,
 * as most generators do, so a request is up to 1 ms late, which counts; otherwise the generator, which shares the
 * processors with the server, would wake up for each single request. The first WARM of the SECONDS are not counted.
 *
 * With RATE LOW-HIGH each user has an open loop of its own: it sends at once, and then comes back every LOW to HIGH
 * seconds (uniformly distributed, the same in each run) after it came last, not after its response. LOW is longer than
 * TIMEOUT, so that no user comes back before its last request has ended.
 *
 * Prints one JSON object. `slots` has, for GET and for all other methods, the latencies: pairs of the upper end of a
 * slot in microseconds and the number of requests. `timeline` has, for each tenth of a second in which requests were
 * due, answers, failures and the longest latency in microseconds; it includes WARM.
 *
 * It sends only once all users are connected, and distinguishes failures: by status, `timeout` (no response within
 * TIMEOUT seconds), `reset` (the connection ended without a response), `connect`. After a failure without a response the
 * user connects again. At the end it waits for the responses of open requests. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MAX_CONNECTING = 500, STEPS = 128, SLOTS = 64 * STEPS / 2, MAX_HEAD = 2048, STATUSES = 600 };
enum { PERIOD = 20000, BIN = 100000, TICK = 1000 }; /* microseconds: between looks for timeouts; of the timeline; of the
                                                       clock */
enum state { DISCONNECTED, CONNECTING, IDLE, WAITING };

struct request {
    const char *data;
    size_t size;
    int other; /* than GET */
};

struct user {
    enum state state;
    int fd, status, closing, listed;
    const struct request *request;
    size_t put;     /* bytes of the request so far; a large one does not fit into the socket's buffer at once */
    int blocked;    /* it waits for room there */
    size_t have;    /* bytes of the head so far */
    size_t missing; /* bytes of the body, once there is a status */
    uint64_t since; /* microseconds; start of the connect, or when the request was due */
    uint64_t next, pending; /* own loop: when it comes next; when it came, if it could not send yet, else 0 */
    struct user *other;     /* own loop: the next user of the same tick */
    char head[MAX_HEAD];
};

struct bin {
    uint64_t answers, failures, max;
};

static struct user *users, **idle; /* idle: a ring */
static struct user **ticks; /* own loops: a list of the users who come in each tick */
static struct request *requests;
static struct bin *timeline;
static size_t requests_count, bins, idle_first, idle_count;
static int poller, users_count, addresses, connecting, connected, waiting;
static uint64_t patience, last_try, sent, total; /* total: requests of an open loop */
static uint64_t ticks_count, ticks_done, owed;   /* owed: users with a pending request */
static double rate, low, high;                   /* low, high: seconds, of own loops; else high is 0 */
static struct sockaddr_in server;
static int sending; /* all users are connected, and the time is not over */
static uint64_t failed_status[STATUSES], failed_timeout, failed_reset, failed_connect, answered, answered_late;
static uint64_t histogram[2][SLOTS], latency_sum, latency_max;
static uint64_t start, counted, end; /* counted: the end of WARM */

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000ull + t.tv_nsec / 1000;
}

/* Microseconds -> a slot of the histogram. A slot is at most 1/64 of its value wide. */
static int slot(uint64_t value) {
    if (value < STEPS) return value;
    int power = 63 - __builtin_clzll(value) - __builtin_ctz(STEPS / 2);
    return power * (STEPS / 2) + (int)(value >> power);
}

static uint64_t slot_end(int at) {
    if (at < STEPS) return at + 1;
    int power = at / (STEPS / 2) - 1;
    return (uint64_t)(at % (STEPS / 2) + STEPS / 2 + 1) << power;
}

static double percentile(double part) {
    uint64_t all = answered + answered_late, seen = 0;
    for (int at = 0; at < SLOTS; at++)
        if ((seen += histogram[0][at] + histogram[1][at]) >= part * all && seen) return slot_end(at) / 1000.0;
    return 0;
}

static struct bin *bin_of(uint64_t since) {
    size_t at = since > start ? (since - start) / BIN : 0;
    return &timeline[at < bins ? at : bins - 1];
}

/* A request that was due at `since` failed. counter: of the kind. */
static void fail(uint64_t *counter, uint64_t since) {
    bin_of(since)->failures++;
    if (since >= counted) ++*counter;
}

static void disconnect(struct user *u) {
    if (u->state == CONNECTING) connecting--;
    else if (u->state != DISCONNECTED) connected--;
    if (u->state == WAITING) waiting--;
    if (u->fd >= 0) close(u->fd);
    u->fd = -1, u->blocked = 0, u->state = DISCONNECTED;
}

/* Send what is left of the request, as far as the socket takes it. */
static void put(struct user *u) {
    ssize_t size = send(u->fd, u->request->data + u->put, u->request->size - u->put, 0);
    if (size < 0 && errno != EAGAIN) {
        fail(&failed_reset, u->since), disconnect(u);
        return;
    }
    if (size > 0) u->put += size;
    int blocked = u->put < u->request->size;
    if (blocked == u->blocked) return;
    struct epoll_event event = {.events = EPOLLIN | (blocked ? EPOLLOUT : 0), .data.ptr = u};
    epoll_ctl(poller, EPOLL_CTL_MOD, u->fd, &event);
    u->blocked = blocked;
}

static void send_next(struct user *u, uint64_t since) {
    u->request = &requests[sent++ % requests_count];
    u->put = u->have = u->status = u->closing = 0, u->since = since, u->state = WAITING, waiting++;
    put(u);
}

static void ready(struct user *u) {
    u->state = IDLE;
    if (high > 0) {
        uint64_t since = u->pending;
        if (since) u->pending = 0, owed--, send_next(u, since);
    } else if (rate == 0) {
        if (sending) send_next(u, now());
    } else if (!u->listed) {
        idle[(idle_first + idle_count++) % users_count] = u;
        u->listed = 1;
    }
}

static uint64_t due(uint64_t number) { return start + (uint64_t)(number * 1e6 / rate); }

/* Open loop: send what is due, as long as users are free. */
static void send_due(void) {
    while (sent < total) {
        uint64_t at = now(), since = due(sent);
        if (since > at) return;
        if (at - since > patience) {
            sent++, fail(&failed_timeout, since);
            continue;
        }
        if (idle_count == 0) return;
        struct user *u = idle[idle_first];
        idle_first = (idle_first + 1) % users_count, idle_count--;
        u->listed = 0;
        if (u->state == IDLE) send_next(u, since);
    }
}

/* Own loop: the user comes at this time. */
static void expect(struct user *u, uint64_t at) {
    if (at >= end) return;
    struct user **tick = &ticks[(at - start + TICK - 1) / TICK];
    u->next = at, u->other = *tick, *tick = u;
}

/* Own loops: all users who have come by now send, or have a pending request. */
static void send_own(void) {
    for (; ticks_done < ticks_count && start + ticks_done * TICK <= now(); ticks_done++)
        for (struct user *u = ticks[ticks_done], *other; u; u = other) {
            other = u->other;
            u->pending = u->next, owed++;
            expect(u, u->next + (uint64_t)((low + (high - low) * drand48()) * 1e6));
            if (u->state == IDLE) ready(u);
        }
}

static void connected_now(struct user *u) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = u};
    epoll_ctl(poller, EPOLL_CTL_MOD, u->fd, &event);
    connecting--, connected++;
    ready(u);
}

static void begin(struct user *u) {
    static uint32_t next;
    int one = 1;
    uint32_t host = 1 + next++ % addresses * (0xfffffd / addresses); /* of 127.0.0.0/8, without its first and last */
    struct sockaddr_in me = {.sin_family = AF_INET};
    me.sin_addr.s_addr = htonl(0x7f000000 + host);
    u->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(u->fd, SOL_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
    setsockopt(u->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    u->state = CONNECTING, u->since = now(), connecting++;
    struct epoll_event event = {.events = EPOLLOUT, .data.ptr = u};
    if (u->fd < 0 || bind(u->fd, (void *)&me, sizeof me) ||
        (connect(u->fd, (void *)&server, sizeof server) && errno != EINPROGRESS) ||
        epoll_ctl(poller, EPOLL_CTL_ADD, u->fd, &event)) {
        failed_connect++;
        disconnect(u);
    }
}

/* Takes bytes of a response. Returns 1 if it is complete, 0 if it is not, -1 if it is not HTTP. */
static int take(struct user *u, const char *data, size_t size) {
    if (!u->status) {
        size_t part = size < MAX_HEAD - 1 - u->have ? size : MAX_HEAD - 1 - u->have;
        memcpy(u->head + u->have, data, part);
        u->head[u->have + part] = 0;
        char *over = strstr(u->head, "\r\n\r\n");
        if (!over) return (u->have += part) < MAX_HEAD - 1 ? 0 : -1;
        size_t used = over + 4 - u->head - u->have;
        over[2] = 0;
        char *length = strcasestr(u->head, "\r\ncontent-length:");
        u->status = strncmp(u->head, "HTTP/1.1 ", 9) ? 0 : atoi(u->head + 9);
        if (u->status < 100 || u->status >= STATUSES || (!length && u->status != 204)) return -1;
        u->missing = length ? strtoul(length + 17, NULL, 10) : 0;
        u->closing = strcasestr(u->head, "\r\nconnection: close") != NULL;
        size -= used;
    }
    if (size > u->missing) return -1;
    u->missing -= size;
    return u->missing == 0;
}

static void receive(struct user *u) {
    static char data[1 << 16];
    ssize_t size = recv(u->fd, data, sizeof data, 0);
    if (size < 0 && errno == EAGAIN) return;
    int done = size > 0 && u->state == WAITING ? take(u, data, size) : -1;
    if (done == 0) return;
    if (done < 0) {
        if (u->state == WAITING) fail(&failed_reset, u->since);
        disconnect(u);
        return;
    }
    uint64_t at = now(), took = at - u->since;
    waiting--;
    if (u->status / 100 == 2) {
        struct bin *bin = bin_of(u->since);
        bin->answers++;
        if (took > bin->max) bin->max = took;
        if (u->since >= counted) {
            if (at < end) answered++;
            else answered_late++;
            histogram[u->request->other][slot(took)]++, latency_sum += took;
            if (took > latency_max) latency_max = took;
        }
    } else {
        fail(&failed_status[u->status], u->since);
    }
    u->state = IDLE;
    if (u->closing || u->blocked) disconnect(u); /* blocked: answered before it was sent */
    else ready(u);
}

/* Handle events until the next request is due, at most for 20 ms; then time out users, and connect the disconnected
 * ones again. */
static void turn(void) {
    struct epoll_event events[1024];
    struct timespec wait = {.tv_nsec = PERIOD * 1000};
    if (rate > 0 && sent < total && idle_count > 0) {
        uint64_t at = now(), next = due(sent);
        uint64_t left = next > at ? (next - start + TICK - 1) / TICK * TICK + start - at : 0;
        if (left < PERIOD) wait.tv_nsec = left * 1000;
    }
    if (ticks_done < ticks_count) {
        uint64_t next = ticks_done, at = now();
        while (next < ticks_done + PERIOD / TICK && next < ticks_count && !ticks[next]) next++;
        uint64_t tick = start + next * TICK;
        wait.tv_nsec = tick > at ? (tick - at < PERIOD ? tick - at : PERIOD) * 1000 : 0;
    }
    int count = epoll_pwait2(poller, events, 1024, &wait, NULL);
    for (int n = 0; n < count; n++) {
        struct user *u = events[n].data.ptr;
        if (u->state == CONNECTING) {
            int error = 0;
            socklen_t size = sizeof error;
            getsockopt(u->fd, SOL_SOCKET, SO_ERROR, &error, &size);
            if (error || events[n].events & (EPOLLERR | EPOLLHUP)) failed_connect++, disconnect(u);
            else if (events[n].events & EPOLLOUT) connected_now(u);
        } else if (u->state != DISCONNECTED) {
            if (u->blocked && events[n].events & EPOLLOUT) put(u);
            if (u->state != DISCONNECTED && events[n].events & ~EPOLLOUT) receive(u);
        }
    }
    if (total) send_due();
    send_own();
    uint64_t at = now();
    if (at - last_try < PERIOD) return;
    last_try = at;
    for (int n = 0; n < users_count; n++) {
        struct user *u = &users[n];
        if ((u->state == CONNECTING || u->state == WAITING) && at > u->since + patience) {
            if (u->state == WAITING) fail(&failed_timeout, u->since);
            else failed_connect++;
            disconnect(u);
        }
        if (u->pending && at > u->pending + patience) {
            fail(&failed_timeout, u->pending);
            u->pending = 0, owed--;
        }
        if (u->state == DISCONNECTED && connecting < MAX_CONNECTING && (sending || !end || sent < total || u->pending))
            begin(u);
    }
}

/* Divide the file into requests. */
static void divide(char *text, size_t size) {
    for (char *at = text, *last = text + size, *over; at < last; at = requests[requests_count - 1].size + at) {
        if (!(over = memmem(at, last - at, "\r\n\r\n", 4))) break;
        over[2] = 0;
        char *length = strcasestr(at, "\r\ncontent-length:");
        over[2] = '\r';
        if (requests_count % 1024 == 0) requests = realloc(requests, (requests_count + 1024) * sizeof *requests);
        size_t whole = over + 4 - at + (length ? strtoul(length + 17, NULL, 10) : 0);
        requests[requests_count++] = (struct request){at, whole, strncmp(at, "GET ", 4) != 0};
    }
}

static void print_slots(const char *name, const uint64_t *slots) {
    const char *comma = "";
    printf("\"%s\":[", name);
    for (int at = 0; at < SLOTS; at++)
        if (slots[at]) printf("%s[%lu,%lu]", comma, slot_end(at), slots[at]), comma = ",";
    printf("]");
}

int main(int count, char **arguments) {
    FILE *file = count == 9 ? fopen(arguments[8], "r") : NULL;
    struct stat about;
    if (!file || fstat(fileno(file), &about))
        return fprintf(stderr, "usage: users PORT USERS ADDRESSES WARM SECONDS TIMEOUT RATE FILE\n"), 2;
    char *text = calloc(1, about.st_size + 1);
    divide(text, fread(text, 1, about.st_size, file));
    if (!requests_count) return fprintf(stderr, "%s: no request\n", arguments[8]), 2;
    server = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(atoi(arguments[1]))};
    server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    uint64_t warm = atof(arguments[4]) * 1e6, seconds = atof(arguments[5]) * 1e6;
    users_count = atoi(arguments[2]), addresses = atoi(arguments[3]), patience = atof(arguments[6]) * 1e6;
    if (sscanf(arguments[7], "%lf-%lf", &low, &high) < 2) rate = low, high = 0;
    else if (low * 1e6 <= patience || high < low) return fprintf(stderr, "needs TIMEOUT < LOW <= HIGH\n"), 2;
    users = calloc(users_count, sizeof *users), idle = calloc(users_count, sizeof *idle);
    for (int n = 0; n < users_count; n++) users[n].fd = -1;
    bins = seconds / BIN + 1, timeline = calloc(bins, sizeof *timeline);
    poller = epoll_create1(0);
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_TIMERSLACK, 1000); /* nanoseconds; the default would delay each request of an open loop by 50 us */

    uint64_t began = now();
    while (connected < users_count && now() - began < 60000000) turn();
    int there = connected;
    start = now(), counted = start + warm, end = start + seconds;
    sending = 1, total = rate * seconds / 1e6;
    if (high > 0) {
        ticks_count = seconds / TICK + 1, ticks = calloc(ticks_count + 1, sizeof *ticks);
        for (int n = 0; n < users_count; n++) expect(&users[n], start);
    } else if (rate == 0)
        for (int n = 0; n < users_count; n++)
            if (users[n].state == IDLE) send_next(&users[n], now());
    while (now() < end) turn();
    sending = 0;
    while (waiting > 0 || sent < total || ticks_done < ticks_count || owed > 0) turn();

    uint64_t all = answered + answered_late, failures = failed_timeout + failed_reset + failed_connect;
    printf("{\"users\":%d,\"connected\":%d,\"connecting\":%.3f,\"requests\":%lu,\"rate\":%.1f,", users_count, there,
        (start - began) / 1e6, all, answered / ((end - counted) / 1e6));
    printf("\"mean\":%.3f,\"p50\":%.3f,\"p99\":%.3f,\"p999\":%.3f,\"max\":%.3f,\"errors by kind\":{",
        all ? latency_sum / 1e3 / all : 0.0, percentile(0.5), percentile(0.99), percentile(0.999), latency_max / 1e3);
    for (int status = 0; status < STATUSES; status++)
        if (failed_status[status]) failures += failed_status[status], printf("\"%d\":%lu,", status, failed_status[status]);
    printf("\"timeout\":%lu,\"reset\":%lu,\"connect\":%lu},\"errors\":%lu,\"slots\":{", failed_timeout, failed_reset,
        failed_connect, failures);
    print_slots("GET", histogram[0]);
    printf(",");
    print_slots("other", histogram[1]);
    printf("},\"timeline\":[");
    for (size_t n = 0; n + 1 < bins; n++)
        printf("%s[%lu,%lu,%lu]", n ? "," : "", timeline[n].answers, timeline[n].failures, timeline[n].max);
    printf("]}\n");
    return 0;
}
