/* AMQP 0-9-1 as the load generator speaks it: encoding, one connection with one channel, and the blocking calls that
 * prepare a run (dial, declare, bind, consume). Everything on the measured road stands in amqpload.c.
 *
 * A conn's read buffer holds [rs, re): bytes received and not yet looked at. */
#ifndef AMQPWIRE_H
#define AMQPWIRE_H
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;

#define RBUF (512 * 1024)
#define METHOD(class_id, method_id) ((u32)(class_id) << 16 | (method_id))

typedef struct {
    u8 *p;
    size_t n, cap;
} buf;

typedef struct {
    int fd, is_pub, want_w;
    u8 *rb;
    size_t rs, re;
    buf w; /* small control writes that the socket has not taken yet, from wo on */
    size_t wo;
    /* consumer */
    u64 delivered, acked;
    u32 v_first, v_stride; /* the k-th body here carries (v_first + k * v_stride) % messages + 1; stride 0: unknown */
    u64 v_before, v_gaps; /* of a stream: offsets that are no message's, before the first one here and since */
    u64 v_serial; /* the id in the header whose body is next, */
    u32 v_size;   /* and the size that a header without one has announced */
    u8 v_group[8]; /* the digits of its group */
    /* publisher: the blob is a run of whole publishes, sent over and over; bo bytes of message bi are already out */
    u8 *blob;
    size_t *off, *uniq, bo; /* uniq: where a message's unique key stands, or its content header, which has its ids */
    u32 nblob, bi, fresh;   /* messages below `fresh` have got their key or ids in this pass over the blob */
    u64 published, conf_low, nnack, serial;
    u8 *ring; /* confirms that came out of order, by tag & rmask */
    u32 rmask;
} conn;

__attribute__((noreturn, format(printf, 1, 2))) static void die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "amqpload: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    exit(1);
}

/* ---- encoding ---- */
static void bput(buf *b, const void *data, size_t n) {
    if (b->n + n > b->cap) {
        b->cap = (b->n + n) * 2 + 256;
        if (!(b->p = realloc(b->p, b->cap))) die("out of memory");
    }
    memcpy(b->p + b->n, data, n);
    b->n += n;
}
static void b8(buf *b, u8 v) { bput(b, &v, 1); }
static void b16(buf *b, u16 v) { bput(b, (u8[]){v >> 8, (u8)v}, 2); }
static void b32(buf *b, u32 v) { b16(b, v >> 16), b16(b, (u16)v); }
static void b64(buf *b, u64 v) { b32(b, v >> 32), b32(b, (u32)v); }
static void bshort(buf *b, const char *s) { b8(b, strlen(s)), bput(b, s, strlen(s)); }
static void blong(buf *b, const char *s) { b32(b, strlen(s)), bput(b, s, strlen(s)); }
static size_t frame_begin(buf *b, u8 type, u16 channel) { return b8(b, type), b16(b, channel), b32(b, 0), b->n; }
static size_t method_begin(buf *b, u16 channel, u16 class_id, u16 method_id) {
    size_t at = frame_begin(b, 1, channel);
    b16(b, class_id), b16(b, method_id);
    return at;
}
static void frame_end(buf *b, size_t at) {
    u32 size = htonl(b->n - at);
    memcpy(b->p + at - 4, &size, 4);
    b8(b, 0xCE);
}
static u16 g16(const u8 *p) { return p[0] << 8 | p[1]; }
static u32 g32(const u8 *p) { return (u32)p[0] << 24 | p[1] << 16 | p[2] << 8 | p[3]; }
static u64 g64(const u8 *p) { return (u64)g32(p) << 32 | g32(p + 4); }

/* ---- blocking conversation ---- */
static void write_all(conn *c, const u8 *p, size_t n) {
    while (n) {
        ssize_t k = write(c->fd, p, n);
        if (k < 0 && errno == EAGAIN) poll(&(struct pollfd){c->fd, POLLOUT, 0}, 1, 1000);
        else if (k < 0 && errno != EINTR) die("write: %s", strerror(errno));
        else if (k > 0) p += k, n -= k;
    }
}
static void die_of_close(u32 method, const u8 *p) {
    if (method == METHOD(10, 50) || method == METHOD(20, 40))
        die("server closed the %s: %u %.*s", method >> 16 == 10 ? "connection" : "channel", g16(p), p[2], p + 3);
}
/* Waits for one method and returns its arguments; other frames are passed over. */
static u8 *wait_for(conn *c, u16 class_id, u16 method_id) {
    for (;;) {
        while (c->re - c->rs >= 7) {
            u8 *p = c->rb + c->rs;
            u32 size = g32(p + 3);
            if (c->re - c->rs < 8ull + size) break;
            c->rs += 8 + size;
            if (p[0] != 1) continue;
            if (g32(p + 7) == METHOD(class_id, method_id)) return p + 11;
            die_of_close(g32(p + 7), p + 11);
        }
        memmove(c->rb, c->rb + c->rs, c->re - c->rs);
        c->re -= c->rs, c->rs = 0;
        if (poll(&(struct pollfd){c->fd, POLLIN, 0}, 1, 60000) <= 0) die("no answer %u.%u in 60 s", class_id, method_id);
        ssize_t k = read(c->fd, c->rb + c->re, RBUF - c->re);
        if (k > 0) c->re += k;
        else if (k == 0 || (errno != EAGAIN && errno != EINTR)) die("connection ended before %u.%u", class_id, method_id);
    }
}
static void call(conn *c, buf *b, size_t at, u16 class_id, u16 method_id) {
    frame_end(b, at);
    write_all(c, b->p, b->n);
    b->n = 0;
    wait_for(c, class_id, method_id);
}
static void dial(conn *c, const char *host, int port, const char *user, const char *password, const char *vhost) {
    memset(c, 0, sizeof *c);
    if (!(c->rb = malloc(RBUF))) die("out of memory");
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    int size = 1 << 20, one = 1;
    setsockopt(c->fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    setsockopt(c->fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    if (inet_pton(AF_INET, host, &to.sin_addr) != 1) die("%s is no IPv4 address", host);
    if (connect(c->fd, (void *)&to, sizeof to)) die("connect %s:%d: %s", host, port, strerror(errno));
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    buf b = {0};
    write_all(c, (const u8 *)"AMQP\0\0\x09\x01", 8);
    wait_for(c, 10, 10);
    size_t at = method_begin(&b, 0, 10, 11); /* start-ok */
    b32(&b, 0), bshort(&b, "PLAIN"), b32(&b, 2 + strlen(user) + strlen(password));
    b8(&b, 0), bput(&b, user, strlen(user)), b8(&b, 0), bput(&b, password, strlen(password)), bshort(&b, "en_US");
    frame_end(&b, at);
    write_all(c, b.p, b.n);
    b.n = 0;
    u8 *tune = wait_for(c, 10, 30);
    u16 channel_max = g16(tune);
    u32 frame_max = g32(tune + 2);
    at = method_begin(&b, 0, 10, 31); /* tune-ok, heartbeats off */
    b16(&b, channel_max), b32(&b, frame_max && frame_max < 131072 ? frame_max : 131072), b16(&b, 0);
    frame_end(&b, at);
    at = method_begin(&b, 0, 10, 40);
    bshort(&b, vhost), bshort(&b, ""), b8(&b, 0);
    call(c, &b, at, 10, 41);
    at = method_begin(&b, 1, 20, 10);
    bshort(&b, "");
    call(c, &b, at, 20, 11);
    free(b.p);
}
/* A stream is durable whatever is asked for. quorum: members of a quorum queue, 0: it is none. */
typedef struct {
    int durable, stream, groups, quorum;
} declared;
static void declare_queue(conn *c, const char *name, declared as) {
    buf b = {0};
    size_t at = method_begin(&b, 1, 50, 10);
    b16(&b, 0), bshort(&b, name), b8(&b, as.durable || as.stream ? 2 : 0);
    size_t table = (b32(&b, 0), b.n);
    if (as.stream || as.quorum) bshort(&b, "x-queue-type"), b8(&b, 'S'), blong(&b, as.stream ? "stream" : "quorum");
    if (as.quorum) bshort(&b, "x-quorum-initial-group-size"), b8(&b, 'I'), b32(&b, as.quorum);
    if (as.groups) bshort(&b, "x-group-by"), b8(&b, 'S'), blong(&b, "header:group");
    u32 size = htonl(b.n - table);
    memcpy(b.p + table - 4, &size, 4);
    call(c, &b, at, 50, 11);
    free(b.p);
}
static void delete_queue(conn *c, const char *name) {
    buf b = {0};
    size_t at = method_begin(&b, 1, 50, 40);
    b16(&b, 0), bshort(&b, name), b8(&b, 0);
    call(c, &b, at, 50, 41);
    free(b.p);
}
static void declare_exchange(conn *c, const char *name, const char *type) {
    buf b = {0};
    size_t at = method_begin(&b, 1, 40, 10);
    b16(&b, 0), bshort(&b, name), bshort(&b, type), b8(&b, 0), b32(&b, 0);
    call(c, &b, at, 40, 11);
    free(b.p);
}
static void delete_exchange(conn *c, const char *name) {
    buf b = {0};
    size_t at = method_begin(&b, 1, 40, 20);
    b16(&b, 0), bshort(&b, name), b8(&b, 0);
    call(c, &b, at, 40, 21);
    free(b.p);
}
/* no_wait: the frame stays in b, for the caller to write. */
static void bind_queue(conn *c, buf *b, const char *exchange, const char *queue, const char *key, int no_wait) {
    size_t at = method_begin(b, 1, 50, 20);
    b16(b, 0), bshort(b, queue), bshort(b, exchange), bshort(b, key), b8(b, no_wait), b32(b, 0);
    if (no_wait) frame_end(b, at);
    else call(c, b, at, 50, 21);
}
/* offset: where in a stream it begins; -1: of a queue. */
static void consume(conn *c, const char *queue, int prefetch, int auto_ack, int64_t offset) {
    buf b = {0};
    size_t at;
    if (prefetch) {
        at = method_begin(&b, 1, 60, 10);
        b32(&b, 0), b16(&b, prefetch), b8(&b, 0);
        call(c, &b, at, 60, 11);
    }
    at = method_begin(&b, 1, 60, 20);
    b16(&b, 0), bshort(&b, queue), bshort(&b, "ct"), b8(&b, auto_ack ? 2 : 0);
    b32(&b, offset >= 0 ? 1 + 15 + 1 + 8 : 0);
    if (offset >= 0) bshort(&b, "x-stream-offset"), b8(&b, 'l'), b64(&b, offset);
    call(c, &b, at, 60, 21);
    free(b.p);
}
static void confirm_select(conn *c) {
    buf b = {0};
    size_t at = method_begin(&b, 1, 85, 10);
    b8(&b, 0);
    call(c, &b, at, 85, 11);
    free(b.p);
}
#endif
