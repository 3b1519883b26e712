/* A load generator: all users connect, then all post in a closed loop over keep-alive connections.
 *
 *   spike_users PORT PATH USERS SECONDS TIMEOUT BODY_FILE
 *
 * Prints one JSON object. Unlike wrk it posts only once all users are connected, and distinguishes failures: by status,
 * `timeout` (no response within TIMEOUT seconds), `reset` (the connection ended without a response), `connect`. After a
 * failure without a response the user connects again. At the end it waits for the responses of open requests. */

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
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { ADDRESSES = 8, MAX_CONNECTING = 500, STEPS = 64, MAX_RESPONSE = 4096, STATUSES = 600 };
enum state { DISCONNECTED, CONNECTING, IDLE, WAITING };

struct user {
    enum state state;
    int fd;
    int have;             /* bytes of the response so far */
    uint64_t since;       /* microseconds; start of the connect or the post */
    char answer[MAX_RESPONSE];
};

static struct user *users;
static int poller, users_count, connecting, connected, waiting;
static uint64_t patience, last_try;
static struct sockaddr_in server;
static char *request;
static size_t request_size;
static int posting; /* all users are connected, and the time is not over */
static uint64_t failed_status[STATUSES], failed_timeout, failed_reset, failed_connect, answered, answered_late;
static uint64_t histogram[64 * STEPS], latency_sum, latency_max;
static uint64_t end;

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000ull + t.tv_nsec / 1000;
}

/* Microseconds -> a slot of the histogram. A slot is at most 1/32 of its value wide. */
static int slot(uint64_t value) {
    if (value < STEPS) return value;
    int power = 63 - __builtin_clzll(value);
    return (power - 5) * (STEPS / 2) + (int)(value >> (power - 5));
}

static double slot_value(int at) {
    if (at < STEPS) return at;
    int power = at / (STEPS / 2) + 4;
    return (double)(((uint64_t)(at % (STEPS / 2) + STEPS / 2)) << (power - 5));
}

static double percentile(double part) {
    uint64_t total = answered + answered_late, seen = 0;
    for (int at = 0; at < 64 * STEPS; at++)
        if ((seen += histogram[at]) >= part * total && seen) return slot_value(at) / 1000;
    return 0;
}

static void disconnect(struct user *u) {
    if (u->state == CONNECTING) connecting--;
    else if (u->state != DISCONNECTED) connected--;
    if (u->state == WAITING) waiting--;
    if (u->fd >= 0) close(u->fd);
    u->fd = -1, u->state = DISCONNECTED;
}

static void post(struct user *u) {
    u->have = 0, u->since = now(), u->state = WAITING, waiting++;
    if (send(u->fd, request, request_size, 0) != (ssize_t)request_size) failed_reset++, disconnect(u);
}

static void connected_now(struct user *u) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = u};
    epoll_ctl(poller, EPOLL_CTL_MOD, u->fd, &event);
    connecting--, connected++, u->state = IDLE;
    if (posting) post(u);
}

static void begin(struct user *u) {
    static int next;
    int one = 1;
    struct sockaddr_in me = {.sin_family = AF_INET};
    me.sin_addr.s_addr = htonl(0x7f000001 + next++ % ADDRESSES); /* an address has fewer than 30,000 ephemeral ports */
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

/* The status of a complete response, 0 if it is incomplete, -1 if it is not HTTP. */
static int whole(struct user *u) {
    u->answer[u->have] = 0;
    char *head = strstr(u->answer, "\r\n\r\n");
    if (!head) return u->have < MAX_RESPONSE - 1 ? 0 : -1;
    int status = u->have > 12 ? atoi(u->answer + 9) : 0;
    char *length = strcasestr(u->answer, "\r\ncontent-length:");
    long size = length && length < head ? atol(length + 17) : 0;
    if (strncmp(u->answer, "HTTP/1.1 ", 9) || status < 100 || status >= STATUSES) return -1;
    if (!length && status != 204) return -1;
    return u->have - (head + 4 - u->answer) >= size ? status : 0;
}

static void receive(struct user *u) {
    ssize_t size = recv(u->fd, u->answer + u->have, MAX_RESPONSE - 1 - u->have, 0);
    if (size < 0 && errno == EAGAIN) return;
    if (size <= 0) {
        if (u->state == WAITING) failed_reset++;
        disconnect(u);
        return;
    }
    u->have += size;
    int status = u->state == WAITING ? whole(u) : -1;
    if (status == 0) return;
    if (status < 0) {
        failed_reset++;
        disconnect(u);
        return;
    }
    uint64_t at = now(), took = at - u->since;
    waiting--, u->state = IDLE;
    if (status / 100 == 2) {
        if (posting || at < end) answered++;
        else answered_late++;
        histogram[slot(took)]++, latency_sum += took;
        if (took > latency_max) latency_max = took;
    } else {
        failed_status[status]++;
    }
    int closing = strcasestr(u->answer, "\r\nconnection: close") != NULL;
    if (closing) disconnect(u);
    else if (posting) post(u);
}

/* Handle events for up to 20 ms; then time out users, and connect the disconnected ones again. */
static void turn(void) {
    struct epoll_event events[1024];
    int ready = epoll_wait(poller, events, 1024, 20);
    for (int n = 0; n < ready; n++) {
        struct user *u = events[n].data.ptr;
        if (u->state == CONNECTING) {
            int error = 0;
            socklen_t size = sizeof error;
            getsockopt(u->fd, SOL_SOCKET, SO_ERROR, &error, &size);
            if (error || events[n].events & (EPOLLERR | EPOLLHUP)) failed_connect++, disconnect(u);
            else if (events[n].events & EPOLLOUT) connected_now(u);
        } else if (u->state != DISCONNECTED) {
            receive(u);
        }
    }
    uint64_t at = now();
    if (at - last_try < 20000) return;
    last_try = at;
    for (int n = 0; n < users_count; n++) {
        struct user *u = &users[n];
        if ((u->state == CONNECTING || u->state == WAITING) && at - u->since > patience) {
            if (u->state == WAITING) failed_timeout++;
            else failed_connect++;
            disconnect(u);
        }
        if (u->state == DISCONNECTED && connecting < MAX_CONNECTING && (posting || !end)) begin(u);
    }
}

int main(int count, char **arguments) {
    FILE *file = count == 7 ? fopen(arguments[6], "r") : NULL;
    if (!file) return fprintf(stderr, "usage: spike_users PORT PATH USERS SECONDS TIMEOUT BODY_FILE\n"), 2;
    static char text[1 << 20];
    size_t size = fread(text, 1, sizeof text, file);
    request = malloc(size + 4096);
    request_size = sprintf(request,
        "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
        arguments[2], arguments[1], size);
    memcpy(request + request_size, text, size), request_size += size;
    server = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(atoi(arguments[1]))};
    server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    users_count = atoi(arguments[3]), patience = atof(arguments[5]) * 1e6;
    users = calloc(users_count, sizeof *users);
    for (int n = 0; n < users_count; n++) users[n].fd = -1;
    poller = epoll_create1(0);
    signal(SIGPIPE, SIG_IGN);

    uint64_t began = now();
    while (connected < users_count && now() - began < 60000000) turn();
    uint64_t start = now();
    int there = connected;
    end = start + atof(arguments[4]) * 1e6;
    posting = 1;
    for (int n = 0; n < users_count; n++)
        if (users[n].state == IDLE) post(&users[n]);
    while (now() < end) turn();
    posting = 0;
    while (waiting > 0) turn();

    uint64_t all = answered + answered_late, failures = failed_timeout + failed_reset + failed_connect;
    printf("{\"users\":%d,\"connected\":%d,\"connecting\":%.3f,\"requests\":%lu,\"rate\":%.1f,", users_count, there,
        (start - began) / 1e6, all, answered / ((end - start) / 1e6));
    printf("\"mean\":%.3f,\"p50\":%.3f,\"p99\":%.3f,\"p999\":%.3f,\"max\":%.3f,\"errors by kind\":{",
        all ? latency_sum / 1e3 / all : 0.0, percentile(0.5), percentile(0.99), percentile(0.999), latency_max / 1e3);
    for (int status = 0; status < STATUSES; status++)
        if (failed_status[status]) failures += failed_status[status], printf("\"%d\":%lu,", status, failed_status[status]);
    printf("\"timeout\":%lu,\"reset\":%lu,\"connect\":%lu},\"errors\":%lu}\n", failed_timeout, failed_reset, failed_connect,
        failures);
    return 0;
}
