/* Take single publishes at the least cost that sockets and a file allow: what `single.py --floor` compares servers with.
 *
 *     floor PORT FOLDER
 *
 * It does the system calls of a publish and no more: wait, receive from every socket that is ready, frame each message,
 * write all frames to a file at once, answer each. It knows PUB and a body that arrives whole, keeps no index, and ends
 * at everything else. Like nsqd it watches its sockets in an epoll set of their own, beside the listening socket.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SOCKETS = 256, RECEIVED = 262144, FRAMES = 1 << 20, HEAD = 34 };
static const char OK[] = {0, 0, 0, 6, 0, 0, 0, 0, 'O', 'K'};
static char received[RECEIVED], frames[FRAMES];
static uint64_t last_id;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void watch(int set, int fd) {
    struct epoll_event event = {EPOLLIN, {.fd = fd}};
    if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event)) fail("epoll_ctl");
}

static int listen_on(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 1024)) fail("listen");
    return fd;
}

/* Put one message as a consumer would receive it: size, type, time, attempts, id, body. Returns its size. */
static size_t put_frame(char *frame, const char *body, uint32_t size) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint32_t length = htonl(30 + size), type = htonl(2);
    uint64_t time = htobe64(now.tv_sec * 1000000000ull + now.tv_nsec), id = ++last_id;
    memcpy(frame, &length, 4);
    memcpy(frame + 4, &type, 4);
    memcpy(frame + 8, &time, 8);
    memset(frame + 16, 0, 2);
    for (int digit = 15; digit >= 0; digit--, id >>= 4) frame[18 + digit] = "0123456789abcdef"[id & 15];
    memcpy(frame + HEAD, body, size);
    return HEAD + size;
}

/* Frame the publish that a socket has sent; returns the size of its frame, 0 where there is nothing to answer. */
static size_t take(int fd, char *frame) {
    ssize_t size = recv(fd, received, sizeof received, MSG_DONTWAIT);
    if (size <= 0) {
        close(fd);
        return 0;
    }
    char *command = received, *end = received + size;
    uint32_t body;
    if (size >= 4 && !memcmp(command, "  V2", 4)) command += 4;
    if (command == end) return 0;
    char *line_end = memchr(command, '\n', end - command);
    if (!line_end || end - line_end < 5 || memcmp(command, "PUB ", 4)) exit(3);
    memcpy(&body, line_end + 1, 4);
    body = ntohl(body);
    if (line_end + 5 + body != end || frame + HEAD + body > frames + FRAMES) exit(3);
    return put_frame(frame, line_end + 5, body);
}

int main(int count, char **words) {
    if (count != 3) return 2;
    int listening = listen_on(atoi(words[1])), all = epoll_create1(0), clients = epoll_create1(0), one = 1;
    if (chdir(words[2])) fail("chdir");
    int file = open("log", O_CREAT | O_RDWR | O_TRUNC, 0644);
    if (file < 0) fail("open");
    watch(all, listening);
    watch(all, clients);
    for (off_t offset = 0;;) {
        struct epoll_event either[2], ready[SOCKETS];
        for (int i = epoll_wait(all, either, 2, -1); i-- > 0;) {
            if (either[i].data.fd == listening) {
                int client = accept4(listening, NULL, NULL, SOCK_NONBLOCK);
                if (client < 0) continue;
                setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                watch(clients, client);
                continue;
            }
            int found = epoll_wait(clients, ready, SOCKETS, 0), answered[SOCKETS], answers = 0;
            size_t used = 0;
            for (int j = 0; j < found; j++) {
                size_t size = take(ready[j].data.fd, frames + used);
                if (size) answered[answers++] = ready[j].data.fd;
                used += size;
            }
            if (used && pwrite(file, frames, used, offset) != (ssize_t)used) fail("write");
            offset += used;
            for (int j = 0; j < answers; j++) send(answered[j], OK, sizeof OK, MSG_DONTWAIT | MSG_NOSIGNAL);
        }
    }
}
