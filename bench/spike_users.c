/* So many users at once: all connect, then all post in a closed loop over their kept connections. Beside the data flow.
 *
 *   spike_users PORT PATH USERS SECONDS TIMEOUT BODY_FILE
 *
 * Prints one JSON object. Unlike wrk it posts only when every user is connected, and tells failures apart: by status,
 * `timeout` (no answer within TIMEOUT seconds), `reset` (the connection ended without an answer), `connect`. After a
 * failure without an answer the user connects again and goes on. When the time is up nothing more is sent, and what is
 * on its way is waited for. */

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

enum { ADDRESSES = 8, CONNECTING_MOST = 500, STEPS = 64, ANSWER_MOST = 4096, STATUSES = 600 };
enum state { APART, CONNECTING, IDLE, WAITING };

struct user {
    enum state state;
    int fd;
    int have;             /* bytes of the answer so far */
    uint64_t since;       /* microseconds: when it began to connect or to post */
    char answer[ANSWER_MOST];
};

static struct user *users;
static int poller, users_count, connecting, connected, waiting;
static uint64_t patience, last_try;
static struct sockaddr_in server;
static char *request;
static size_t request_size;
static int posting; /* all are connected, and the time is not up */
static uint64_t failed_status[STATUSES], failed_timeout, failed_reset, failed_connect, answered, answered_late;
static uint64_t histogram[64 * STEPS], latency_sum, latency_most;
static uint64_t end;

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000ull + t.tv_nsec / 1000;
}

/* Microseconds -> a slot; slots grow with the value, each is 1/32 of it wide or less. */
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

static void part_with(struct user *u) {
    if (u->state == CONNECTING) connecting--;
    else if (u->state != APART) connected--;
    if (u->state == WAITING) waiting--;
    if (u->fd >= 0) close(u->fd);
    u->fd = -1, u->state = APART;
}

static void post(struct user *u) {
    u->have = 0, u->since = now(), u->state = WAITING, waiting++;
    if (send(u->fd, request, request_size, 0) != (ssize_t)request_size) failed_reset++, part_with(u);
}

static void met(struct user *u) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = u};
    epoll_ctl(poller, EPOLL_CTL_MOD, u->fd, &event);
    connecting--, connected++, u->state = IDLE;
    if (posting) post(u);
}

static void join(struct user *u) {
    static int next;
    int one = 1;
    struct sockaddr_in me = {.sin_family = AF_INET};
    me.sin_addr.s_addr = htonl(0x7f000001 + next++ % ADDRESSES); /* one address has fewer than 30,000 ports */
    u->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(u->fd, SOL_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
    setsockopt(u->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    u->state = CONNECTING, u->since = now(), connecting++;
    struct epoll_event event = {.events = EPOLLOUT, .data.ptr = u};
    if (u->fd < 0 || bind(u->fd, (void *)&me, sizeof me) ||
        (connect(u->fd, (void *)&server, sizeof server) && errno != EINPROGRESS) ||
        epoll_ctl(poller, EPOLL_CTL_ADD, u->fd, &event)) {
        failed_connect++;
        part_with(u);
    }
}

/* The status of a whole answer, 0 if more is to come, -1 if it is not HTTP. */
static int whole(struct user *u) {
    u->answer[u->have] = 0;
    char *head = strstr(u->answer, "\r\n\r\n");
    if (!head) return u->have < ANSWER_MOST - 1 ? 0 : -1;
    int status = u->have > 12 ? atoi(u->answer + 9) : 0;
    char *length = strcasestr(u->answer, "\r\ncontent-length:");
    long size = length && length < head ? atol(length + 17) : 0;
    if (strncmp(u->answer, "HTTP/1.1 ", 9) || status < 100 || status >= STATUSES) return -1;
    if (!length && status != 204) return -1;
    return u->have - (head + 4 - u->answer) >= size ? status : 0;
}

static void hear(struct user *u) {
    ssize_t size = recv(u->fd, u->answer + u->have, ANSWER_MOST - 1 - u->have, 0);
    if (size < 0 && errno == EAGAIN) return;
    if (size <= 0) {
        if (u->state == WAITING) failed_reset++;
        part_with(u);
        return;
    }
    u->have += size;
    int status = u->state == WAITING ? whole(u) : -1;
    if (status == 0) return;
    if (status < 0) {
        failed_reset++;
        part_with(u);
        return;
    }
    uint64_t at = now(), took = at - u->since;
    waiting--, u->state = IDLE;
    if (status / 100 == 2) {
        if (posting || at < end) answered++;
        else answered_late++;
        histogram[slot(took)]++, latency_sum += took;
        if (took > latency_most) latency_most = took;
    } else {
        failed_status[status]++;
    }
    int closing = strcasestr(u->answer, "\r\nconnection: close") != NULL;
    if (closing) part_with(u);
    else if (posting) post(u);
}

/* One look at what has happened; then at who waits in vain, and who has to connect again. */
static void turn(void) {
    struct epoll_event events[1024];
    int ready = epoll_wait(poller, events, 1024, 20);
    for (int n = 0; n < ready; n++) {
        struct user *u = events[n].data.ptr;
        if (u->state == CONNECTING) {
            int error = 0;
            socklen_t size = sizeof error;
            getsockopt(u->fd, SOL_SOCKET, SO_ERROR, &error, &size);
            if (error || events[n].events & (EPOLLERR | EPOLLHUP)) failed_connect++, part_with(u);
            else if (events[n].events & EPOLLOUT) met(u);
        } else if (u->state != APART) {
            hear(u);
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
            part_with(u);
        }
        if (u->state == APART && connecting < CONNECTING_MOST && (posting || !end)) join(u);
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
    printf("\"mean\":%.3f,\"p50\":%.3f,\"p99\":%.3f,\"p999\":%.3f,\"most\":%.3f,\"errors by kind\":{",
        all ? latency_sum / 1e3 / all : 0.0, percentile(0.5), percentile(0.99), percentile(0.999), latency_most / 1e3);
    for (int status = 0; status < STATUSES; status++)
        if (failed_status[status]) failures += failed_status[status], printf("\"%d\":%lu,", status, failed_status[status]);
    printf("\"timeout\":%lu,\"reset\":%lu,\"connect\":%lu},\"errors\":%lu}\n", failed_timeout, failed_reset, failed_connect,
        failures);
    return 0;
}
