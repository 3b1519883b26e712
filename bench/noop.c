/* The fastest possible server behind nginx: it reads each request completely and sends BODY, which is JSON.
 * One process, epoll, any number of Unix sockets: noop BODY PATH... */

#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { MAX_HEAD = 16384, MAX_CONNECTIONS = 65536 };

struct connection {
    size_t body;     /* remaining bytes of the body */
    size_t have;     /* bytes of an incomplete head in buffer */
    char buffer[];   /* MAX_HEAD */
};

static struct connection *connections[MAX_CONNECTIONS]; /* indexed by descriptor */
static char is_listener[MAX_CONNECTIONS];

static void disconnect(int fd) {
    free(connections[fd]);
    connections[fd] = NULL;
    close(fd);
}

/* Parses data; returns the number of requests that it completes, -1 if it is not HTTP. */
static int take(struct connection *c, const char *data, size_t size) {
    int done = 0;
    while (size > 0) {
        if (c->body > 0) {
            size_t part = size < c->body ? size : c->body;
            c->body -= part, data += part, size -= part;
            if (c->body > 0) break;
            done++;
            continue;
        }
        size_t part = size < MAX_HEAD - 1 - c->have ? size : MAX_HEAD - 1 - c->have;
        if (part == 0) return -1;
        memcpy(c->buffer + c->have, data, part);
        c->buffer[c->have + part] = 0;
        char *end = memmem(c->buffer, c->have + part, "\r\n\r\n", 4);
        if (end == NULL) {
            c->have += part, data += part, size -= part;
            continue;
        }
        size_t used = end + 4 - c->buffer - c->have;
        end[2] = 0;
        char *length = strcasestr(c->buffer, "\r\ncontent-length:");
        c->body = length ? strtoul(length + 17, NULL, 10) : 0;
        c->have = 0, data += used, size -= used;
        if (c->body == 0) done++;
    }
    return done;
}

int main(int count, char **arguments) {
    int poll = epoll_create1(0);
    char *response;
    if (count < 3) return fprintf(stderr, "usage: noop BODY PATH...\n"), 2;
    int response_size = asprintf(&response,
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s", strlen(arguments[1]),
        arguments[1]);
    signal(SIGPIPE, SIG_IGN); /* nginx may close first */
    for (int n = 2; n < count; n++) {
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
        strncpy(address.sun_path, arguments[n], sizeof address.sun_path - 1);
        unlink(arguments[n]);
        if (bind(fd, (void *)&address, sizeof address) || listen(fd, 65535)) return perror(arguments[n]), 1;
        is_listener[fd] = 1;
        epoll_ctl(poll, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = EPOLLIN, .data.fd = fd});
    }
    for (;;) {
        static char data[65536];
        struct epoll_event events[512];
        int ready = epoll_wait(poll, events, 512, -1);
        for (int n = 0; n < ready; n++) {
            int fd = events[n].data.fd, client;
            if (is_listener[fd]) {
                while ((client = accept4(fd, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                    if (client >= MAX_CONNECTIONS) { close(client); continue; }
                    connections[client] = calloc(1, sizeof(struct connection) + MAX_HEAD);
                    epoll_ctl(poll, EPOLL_CTL_ADD, client, &(struct epoll_event){.events = EPOLLIN, .data.fd = client});
                }
                continue;
            }
            ssize_t size = recv(fd, data, sizeof data, 0);
            if (size < 0 && (errno == EAGAIN || errno == EINTR)) continue;
            int done = size > 0 ? take(connections[fd], data, size) : -1;
            /* a response always fits into the socket's buffer: nginx does not pipeline */
            for (; done > 0; done--)
                if (send(fd, response, response_size, 0) < 0) done = 0;
            if (done < 0) disconnect(fd);
        }
    }
}
