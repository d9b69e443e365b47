/* echo: the floor under every latency of S7. Nothing but this machine's timer, sockets and scheduler.
 *
 *     gcc -O2 -Wall -Wextra -o echo echo.c && ./echo SECONDS WARM_SECONDS MESSAGES_A_SECOND
 *
 * A child process stands where the broker stands: it reads from one connection and writes what it read to another. The
 * parent does as amqpload does with --rate: one thread, epoll, a timer; a message goes out when it is due and its latency
 * counts from then. So what a broker shows above this is the broker's own. One line of JSON is the answer. */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define MESSAGE 96 /* some bytes less than a publish of 16 bytes, and than its delivery */
typedef uint64_t u64;

static u64 now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (u64)t.tv_sec * 1000000000ull + t.tv_nsec;
}
static long must(long value, const char *what) {
    if (value >= 0) return value;
    perror(what);
    exit(1);
}
static int by_size(const void *a, const void *b) {
    u64 x = *(const u64 *)a, y = *(const u64 *)b;
    return (x > y) - (x < y);
}
static void at_once(int fd) {
    int one = 1;
    must(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one), "TCP_NODELAY");
}
static void watch(int ep, int fd) {
    struct epoll_event want = {.events = EPOLLIN, .data.fd = fd};
    must(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &want), "epoll_ctl");
}

/* Until the parent closes its end. */
static void relay(int from, int to) {
    char bytes[65536];
    struct epoll_event event;
    int ep = must(epoll_create1(0), "epoll_create1");
    at_once(to);
    watch(ep, from);
    for (;;) {
        must(epoll_wait(ep, &event, 1, -1), "epoll_wait");
        long n = must(read(from, bytes, sizeof bytes), "read");
        if (!n) exit(0);
        must(write(to, bytes, n), "write");
    }
}

int main(int count, char **words) {
    if (count != 4 || atof(words[1]) <= 0 || atof(words[3]) < 1) {
        puts("usage: echo SECONDS WARM_SECONDS MESSAGES_A_SECOND");
        return 2;
    }
    u64 step = 1e9 / atof(words[3]), warm = atof(words[2]) * 1e9 / step, total = warm + atof(words[1]) * 1e9 / step;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int listening = must(socket(AF_INET, SOCK_STREAM, 0), "socket"), fds[2];
    must(bind(listening, (void *)&at, sizeof at), "bind");
    must(listen(listening, 2), "listen");
    must(getsockname(listening, (void *)&at, &size), "getsockname");
    for (int i = 0; i < 2; i++) {
        fds[i] = must(socket(AF_INET, SOCK_STREAM, 0), "socket");
        must(connect(fds[i], (void *)&at, sizeof at), "connect");
    }
    int from = must(accept(listening, 0, 0), "accept"), to = must(accept(listening, 0, 0), "accept");
    if (!must(fork(), "fork")) {
        close(fds[0]), close(fds[1]);
        relay(from, to);
    }
    close(from), close(to), at_once(fds[0]);

    int ep = must(epoll_create1(0), "epoll_create1"), timer = must(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK), "timerfd");
    u64 due = now_ns() + 100000000, sent = 0, got = 0, *latencies = malloc((total - warm + 1) * sizeof *latencies);
    struct itimerspec every = {{step / 1000000000, step % 1000000000}, {due / 1000000000, due % 1000000000}};
    must(timerfd_settime(timer, TFD_TIMER_ABSTIME, &every, 0), "timerfd_settime");
    watch(ep, timer), watch(ep, fds[1]);
    char bytes[65536] = {0};
    long partial = 0;
    while (got < total) {
        struct epoll_event events[2];
        int n = must(epoll_wait(ep, events, 2, 10000), "epoll_wait");
        if (!n) return fputs("nothing moved for 10 s\n", stderr), 1;
        for (int i = 0; i < n; i++) {
            if (events[i].data.fd == timer) {
                u64 ticks = 0;
                if (read(timer, &ticks, 8) != 8) continue;
                for (; ticks && sent < total; ticks--, sent++) must(write(fds[0], bytes, MESSAGE), "write");
                continue;
            }
            u64 now;
            partial += must(read(fds[1], bytes, sizeof bytes), "read");
            now = now_ns();
            for (; partial >= MESSAGE; partial -= MESSAGE, got++)
                if (got >= warm) latencies[got - warm] = now - (due + got * step);
        }
    }
    u64 measured = total - warm;
    qsort(latencies, measured, sizeof *latencies, by_size);
    printf("{\"rate\":%.0f,\"p50_us\":%.1f,\"p99_us\":%.1f,\"p999_us\":%.1f}\n", 1e9 / step, latencies[measured / 2] / 1e3,
           latencies[measured * 99 / 100] / 1e3, latencies[measured * 999 / 1000] / 1e3);
    return 0;
}
