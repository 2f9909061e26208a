/* Publish one message at a time over independent connections: one thread each, every message waits for its answer.
 *
 *     single PROTOCOL PORT CONNECTIONS SECONDS BODY_BYTES     PROTOCOL is nsq, redis or nats
 *
 * Prints the number of answered messages and the seconds that they took. Threads are as independent of one another as
 * real producers are, and a thread does nothing but send, receive and count.
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static char *request;
static size_t request_size;
static char expected[16]; /* how a good answer begins, behind `skipped` bytes */
static size_t skipped;
static int port;
static atomic_int connected, running, stopped;
static atomic_long answered;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void send_all(int fd, const char *data, size_t size) {
    while (size) {
        ssize_t sent = send(fd, data, size, MSG_NOSIGNAL);
        if (sent <= 0) fail("send");
        data += sent;
        size -= sent;
    }
}

/* NSQ's heartbeats come between answers; they are answered, and do not count. */
static size_t receive_frame(int fd, char *buffer, size_t room) {
    size_t have = 0, size = 4;
    while (have < size) {
        ssize_t got = recv(fd, buffer + have, room - have, 0);
        if (got <= 0) fail("recv");
        have += got;
        if (have >= 4) size = 4 + ntohl(*(uint32_t *)buffer);
        if (size > room) exit(2);
    }
    return have;
}

static size_t receive_line(int fd, char *buffer, size_t room) {
    size_t have = 0;
    while (!have || buffer[have - 1] != '\n') {
        ssize_t got = recv(fd, buffer + have, room - have, 0);
        if (got <= 0) fail("recv");
        have += got;
    }
    return have;
}

/* Look at each line: NATS may send a PING together with an answer. Returns whether a good answer is there. */
static int read_lines(int fd, char *buffer, size_t have) {
    int good = 0;
    for (char *line = buffer, *end = buffer + have; line < end; line = (char *)memchr(line, '\n', end - line) + 1) {
        if (!strncmp(line, expected, strlen(expected))) {
            good = 1;
        } else if (!strncmp(line, "PING", 4)) {
            send_all(fd, "PONG\r\n", 6);
        } else {
            fprintf(stderr, "unexpected answer: %.*s\n", (int)(end - line), line);
            exit(1);
        }
    }
    return good;
}

static void *publish(void *protocol) {
    char buffer[65536];
    int nsq = !strcmp(protocol, "nsq"), nats = !strcmp(protocol, "nats"), one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address)) fail("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (nsq) send_all(fd, "  V2", 4);
    if (nats) {
        const char *hello = "CONNECT {\"verbose\":true}\r\n";
        receive_line(fd, buffer, sizeof buffer);
        send_all(fd, hello, strlen(hello));
        receive_line(fd, buffer, sizeof buffer);
    }
    atomic_fetch_add(&connected, 1);
    while (!atomic_load(&running)) usleep(1000);
    long count = 0;
    while (!atomic_load_explicit(&stopped, memory_order_relaxed)) {
        send_all(fd, request, request_size);
        for (;;) {
            size_t have = nsq ? receive_frame(fd, buffer, sizeof buffer) : receive_line(fd, buffer, sizeof buffer);
            if (nats) {
                if (read_lines(fd, buffer, have)) break;
                continue;
            }
            if (have >= skipped + strlen(expected) && !memcmp(buffer + skipped, expected, strlen(expected))) break;
            if (nsq && have >= 19 && !memcmp(buffer + 8, "_heartbeat_", 11)) {
                send_all(fd, "NOP\n", 4);
            } else {
                fprintf(stderr, "unexpected answer: %.*s\n", (int)have, buffer);
                exit(1);
            }
        }
        count++;
    }
    atomic_fetch_add(&answered, count);
    close(fd);
    return NULL;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

int main(int count, char **words) {
    if (count != 6) return 2;
    const char *protocol = words[1];
    port = atoi(words[2]);
    int connections = atoi(words[3]), body = atoi(words[5]);
    char *text = malloc(body + 1);
    memset(text, 'x', body);
    text[body] = 0;
    request = malloc(body + 200);
    if (!strcmp(protocol, "nsq")) { /* PUB bench\n size body */
        uint32_t size = htonl(body);
        memcpy(request, "PUB bench\n", 10);
        memcpy(request + 10, &size, 4);
        memcpy(request + 14, text, body);
        request_size = 14 + body;
        skipped = 8;
        strcpy(expected, "OK");
    } else if (!strcmp(protocol, "redis")) {
        request_size = sprintf(request, "*5\r\n$4\r\nXADD\r\n$5\r\nbench\r\n$1\r\n*\r\n$4\r\ndata\r\n$%d\r\n%s\r\n", body, text);
        strcpy(expected, "$");
    } else if (!strcmp(protocol, "nats")) {
        request_size = sprintf(request, "PUB bench %d\r\n%s\r\n", body, text);
        strcpy(expected, "+OK");
    } else {
        return 2;
    }
    pthread_t *threads = calloc(connections, sizeof *threads);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 256 * 1024);
    for (int i = 0; i < connections; i++)
        if (pthread_create(&threads[i], &small, publish, (void *)protocol)) fail("thread");
    while (atomic_load(&connected) < connections) usleep(1000);
    double began = seconds();
    atomic_store(&running, 1);
    usleep((useconds_t)(atof(words[4]) * 1e6));
    atomic_store(&stopped, 1);
    for (int i = 0; i < connections; i++) pthread_join(threads[i], NULL);
    printf("%ld %.6f\n", atomic_load(&answered), seconds() - began);
    return 0;
}
