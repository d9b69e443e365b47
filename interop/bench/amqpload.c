/* amqpload: an AMQP 0-9-1 load generator cheap enough for the broker to be the bottleneck.
 *
 *     gcc -O2 -Wall -Wextra -o amqpload amqpload.c
 *     ./amqpload -s S3 --port 5672 --pid BROKER_PID --time 3 --verify
 *
 * One thread, epoll. A publisher sends a blob of pre-encoded publishes over and over; a consumer scans frames where they
 * lie in the read buffer. What is in flight is bounded (--inflight, --window), so that no broker is measured on how it
 * swallows an endless backlog. One line of JSON is the answer: messages per second over the measured seconds, the
 * broker's CPU per message (from /proc/PID/stat, all its threads), its peak memory, latencies where --rate is given.
 * A broker of several nodes has a port and a process for each: --ports and --pid take several, the connections go round
 * the ports, and CPU and memory are sums. Queue i is declared at port i, and so is its consumer; publishers come next.
 *
 * Body: 8 bytes with the message's number within the blob (with --rate: its due time; with ids: the publisher's count),
 * then the alphabet over and over. With --bodymax sizes change from message to message. With --rich and --celery every
 * message has ids of its own: no two content headers of a run are alike.
 * With --rate a message is published when it is due, whatever became of those before, and its latency counts from then,
 * so that a broker that stands still for a while pays for every message of that while; all of them are waited for.
 * --verify checks every delivery: tag, size, number (so order, loss and duplicates), every byte, and the whole content
 * header against what was published: with ids, those that belong to the body behind it. */
#define _GNU_SOURCE
#include "amqpwire.h"
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <time.h>

#define MAX_CONNS 1024
#define STALL_S 45
#define PATIENCE_S 10
#define CONFIRM_S 30 /* with --rate: as much as a confirm may be late */
#define GAP_BYTES 100000000ull /* of a stream's bodies, for each offset that is no message's */

static u64 now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (u64)t.tv_sec * 1000000000ull + t.tv_nsec;
}

/* ---- options ---- */
static const char *o_host = "127.0.0.1", *o_user = "guest", *o_pass = "guest", *o_vhost = "/", *o_name = "run", *o_prefix;
static const char *o_ports, *o_pids, *o_besides;
static int o_port = 5672, o_quorum, o_body = 16, o_persist, o_durable, o_confirm, o_window = 1000, o_autoack, o_prefetch;
static int o_ackevery = 1, o_queues = 1, o_consumers = 1, o_publishers = 1, o_fanout, o_topic, o_unique, o_rich, o_rr, o_pair;
static int o_bodymax, o_celery, o_ids, o_stream, o_spread, o_groups, o_groupby;
static int o_inflight = 10000, o_pubonly, o_drain, o_keep, o_coalesce, o_rate, o_verify, o_chunk = 64 * 1024;
static double o_time = 5, o_warm = 1, o_count;

static const struct option_row {
    const char *name;
    int *number;
    const char **text;
    double *real;
    int *flag;
    const char *help;
} ROWS[] = {
    {"--name", 0, &o_name, 0, 0, "TEXT  name in the answer"},
    {"--host", 0, &o_host, 0, 0, "IPV4"},
    {"--port", &o_port, 0, 0, 0, "N"},
    {"--ports", 0, &o_ports, 0, 0, "N,N...  of a broker's nodes, instead of --port: connections go round them"},
    {"--user", 0, &o_user, 0, 0, "NAME"},
    {"--pass", 0, &o_pass, 0, 0, "PASSWORD"},
    {"--vhost", 0, &o_vhost, 0, 0, "NAME"},
    {"--prefix", 0, &o_prefix, 0, 0, "TEXT  begins the names of queues and exchange (default: from the process id)"},
    {"--pid", 0, &o_pids, 0, 0, "N,N...  processes whose CPU and memory are read"},
    {"--beside", 0, &o_besides, 0, 0, "N,N...  more processes, counted by themselves"},
    {"--body", &o_body, 0, 0, 0, "BYTES  at least 8"},
    {"--bodymax", &o_bodymax, 0, 0, 0, "BYTES  bodies of --body to so many bytes, another size each (default: all of --body)"},
    {"--persist", 0, 0, 0, &o_persist, "delivery mode 2"},
    {"--durable", 0, 0, 0, &o_durable, "durable queues"},
    {"--rich", 0, 0, 0, &o_rich, "five headers, one of them an id of its own, and an expiration on every message"},
    {"--celery", 0, 0, 0, &o_celery, "a Celery task message: 16 headers, correlation-id, reply-to, ids of its own"},
    {"--confirm", 0, 0, 0, &o_confirm, "publisher confirms"},
    {"--window", &o_window, 0, 0, 0, "N  unconfirmed publishes per publisher"},
    {"--autoack", 0, 0, 0, &o_autoack, "consumers do not acknowledge"},
    {"--prefetch", &o_prefetch, 0, 0, 0, "N"},
    {"--ackevery", &o_ackevery, 0, 0, 0, "N  one multiple ack for at least so many deliveries"},
    {"--queues", &o_queues, 0, 0, 0, "N"},
    {"--consumers", &o_consumers, 0, 0, 0, "N  connections; consumer i reads queue i % queues"},
    {"--publishers", &o_publishers, 0, 0, 0, "N  connections"},
    {"--fanout", 0, 0, 0, &o_fanout, "a fanout exchange before all queues"},
    {"--topic", &o_topic, 0, 0, 0, "N  a topic exchange with N bindings on 10 queues, keys of one queue"},
    {"--unique", 0, 0, 0, &o_unique, "with --topic: no routing key comes twice"},
    {"--rr", 0, 0, 0, &o_rr, "each publisher goes round all queues"},
    {"--pair", 0, 0, 0, &o_pair, "publisher i sends to queue i, which consumer i reads; --inflight is per pair"},
    {"--inflight", &o_inflight, 0, 0, 0, "N  bound on published and not delivered (0: none)"},
    {"--warm", 0, 0, &o_warm, 0, "SECONDS  before measuring"},
    {"--time", 0, 0, &o_time, 0, "SECONDS  measured"},
    {"--count", 0, 0, &o_count, 0, "N  messages instead of seconds"},
    {"--rate", &o_rate, 0, 0, 0, "N  messages a second at fixed due times: latency from due time to delivery"},
    {"--pubonly", 0, 0, 0, &o_pubonly, "no consumer"},
    {"--drain", 0, 0, 0, &o_drain, "no publisher: consume --count messages that an earlier run left"},
    {"--keep", 0, 0, 0, &o_keep, "leave queues and messages"},
    {"--stream", 0, 0, 0, &o_stream, "queues are streams, read from their first message on"},
    {"--spread", 0, 0, 0, &o_spread, "with --stream --drain: consumer i begins where its share of --count does"},
    {"--groups", &o_groups, 0, 0, 0, "N  a header `group` on every message, one of so many"},
    {"--quorum", &o_quorum, 0, 0, 0, "N  queues are quorum queues of so many members"},
    {"--groupby", 0, 0, 0, &o_groupby, "with --groups: queues have x-group-by (message groups)"},
    {"--coalesce", &o_coalesce, 0, 0, 0, "MICROSECONDS  sleep between passes: a cheaper generator"},
    {"--chunk", &o_chunk, 0, 0, 0, "BYTES  per write"},
    {"--verify", 0, 0, 0, &o_verify, "check tags, order, headers and bodies"},
};
#define NROWS (sizeof ROWS / sizeof *ROWS)

__attribute__((noreturn)) static void usage(void) {
    puts("usage: amqpload [-s SCENARIO] [options]   scenarios: S1 S2 S3 S4pub S4drain S5 S6 S7 S6u S1v S1h S3h S1c S3c\n"
         "                                          S3x200 S3x50 S3g S3r 50x50 window1 window10 window100 ST3 STpub ST1 ST10; options after -s change it");
    for (size_t i = 0; i < NROWS; i++) printf("  %-12s %s\n", ROWS[i].name, ROWS[i].help);
    exit(2);
}
static void durable_with_confirms(void) {
    o_body = 1024, o_persist = o_durable = o_confirm = 1, o_window = 1000;
    o_prefetch = 500, o_ackevery = 100, o_inflight = 5000;
}
static void preset(const char *s) {
    o_name = s;
    if (!strcmp(s, "S1") || !strcmp(s, "S1v") || !strcmp(s, "S1h") || !strcmp(s, "S1c")) o_autoack = 1;
    else if (!strcmp(s, "S2")) o_body = 1024, o_autoack = 1, o_inflight = 5000;
    else if (!strcmp(s, "S3") || !strcmp(s, "S3h") || !strcmp(s, "S3c")) durable_with_confirms();
    else if (!strcmp(s, "S4pub")) durable_with_confirms(), o_pubonly = o_keep = 1, o_inflight = 0;
    else if (!strcmp(s, "S4drain")) durable_with_confirms(), o_confirm = 0, o_drain = 1;
    else if (!strcmp(s, "ST3")) durable_with_confirms(), o_stream = 1;
    else if (!strcmp(s, "STpub")) durable_with_confirms(), o_stream = o_pubonly = o_keep = 1, o_inflight = 0;
    else if (!strcmp(s, "ST1") || !strcmp(s, "ST10")) durable_with_confirms(), o_confirm = 0, o_stream = o_drain = 1;
    else if (!strcmp(s, "S5")) o_autoack = 1, o_fanout = 1, o_queues = o_consumers = 10, o_inflight = 2000;
    else if (!strcmp(s, "S6") || !strcmp(s, "S6u")) o_autoack = 1, o_topic = 10000, o_queues = 10;
    else if (!strcmp(s, "S7")) o_autoack = 1, o_rate = 1000;
    else if (!strcmp(s, "S3x200")) durable_with_confirms(), o_queues = o_consumers = 200, o_rr = 1, o_ackevery = 2;
    else if (!strcmp(s, "S3r")) durable_with_confirms(), o_rate = 1000;
    else if (!strcmp(s, "S3x50") || !strcmp(s, "S3g")) {
        durable_with_confirms(), o_consumers = 50, o_prefetch = 100, o_ackevery = 1, o_groups = 10000;
        o_groupby = !strcmp(s, "S3g");
    } else if (!strcmp(s, "50x50")) o_autoack = o_pair = 1, o_queues = o_consumers = o_publishers = 50, o_inflight = 200;
    else if (!strncmp(s, "window", 6)) o_autoack = 1, o_inflight = atoi(s + 6);
    else die("unknown scenario %s", s);
    if (!strncmp(s, "S4", 2)) o_count = 500000, o_warm = 0, o_prefix = "perfS4";
    if (!strcmp(s, "STpub") || (o_stream && o_drain)) o_count = 500000, o_warm = 0, o_prefix = "perfST";
    if (o_stream && o_drain) o_prefetch = 2000, o_ackevery = 500;
    if (!strcmp(s, "ST1")) o_keep = 1;
    if (!strcmp(s, "ST10")) o_consumers = 10, o_spread = 1;
    o_rich = !strcmp(s, "S1h") || !strcmp(s, "S3h");
    o_celery = !strcmp(s, "S1c") || !strcmp(s, "S3c");
    if (o_celery) o_body = 60, o_bodymax = 260;
    if (!strcmp(s, "S1v")) o_bodymax = 48;
    o_unique = !strcmp(s, "S6u");
}
/* Of several nodes: their ports, their processes, those that work for them. */
#define MAX_NODES 16
static int ports[MAX_NODES], nports, pids[MAX_NODES], npids, besides[MAX_NODES], nbesides;
static int numbers_of(const char *text, int *to) {
    int n = 0;
    for (char *end; text && *text; text = *end ? end + 1 : end) {
        long number = strtol(text, &end, 10);
        if (end == text || (*end && *end != ',') || n == MAX_NODES) usage();
        if (number) to[n++] = (int)number;
    }
    return n;
}
static void read_options(int count, char **words) {
    for (int i = 1; i < count; i++) {
        if (!strcmp(words[i], "-s") && i + 1 < count) {
            preset(words[++i]);
            continue;
        }
        const struct option_row *row = ROWS, *end = ROWS + NROWS;
        while (row < end && strcmp(row->name, words[i])) row++;
        if (row == end || (!row->flag && ++i == count)) usage();
        if (row->flag) *row->flag = 1;
        else if (row->text) *row->text = words[i];
        else if (row->real) *row->real = atof(words[i]);
        else *row->number = atoi(words[i]);
    }
    if (o_body < 8 || o_queues < 1 || o_publishers < 1) die("--body at least 8, --queues and --publishers at least 1");
    if (o_publishers + o_consumers + 1 > MAX_CONNS) die("at most %d connections", MAX_CONNS - 1);
    if (o_pair && (o_consumers != o_queues || o_publishers != o_queues)) die("--pair: as many publishers as queues, consumers");
    if (o_unique && !o_topic) die("--unique goes with --topic");
    if (o_groupby && !o_groups) die("--groupby goes with --groups");
    if (o_groups && (o_rich || o_celery)) die("--groups has a header of its own");
    if (o_rich && o_celery) die("either --rich or --celery");
    o_ids = o_rich || o_celery;
    nports = numbers_of(o_ports, ports);
    if (!nports) ports[nports++] = o_port;
    npids = numbers_of(o_pids, pids), nbesides = numbers_of(o_besides, besides);
    if (o_quorum && !o_durable) die("--quorum goes with --durable");
    if (o_rate && o_confirm && o_publishers > 1) die("--rate and --confirm go with one publisher");
    if (o_stream && (o_ids || o_autoack)) die("--stream goes with acks, without ids");
    if (o_spread && !(o_stream && o_drain)) die("--spread goes with --stream --drain");
    if (o_bodymax < o_body) o_bodymax = o_body;
    if (o_rate && (o_ids || o_bodymax > o_body)) die("--rate goes with bodies of one size, without ids");
}

/* ---- what is published ---- */
static conn conns[MAX_CONNS];
static int nconns;
static u32 blob_messages; /* messages in a blob; the same for every publisher */
/* Message n of every blob, as it is published and must come back; with ids, `write_ids` completes its header. */
#define IDS_MAX 5
#define ID_DIGITS 12
typedef struct {
    u8 *header; /* the content header's payload */
    u32 header_size, body_size;
    u16 ids[IDS_MAX + 1]; /* where in the header an id's digits stand; 0 ends them */
} sample;
static sample *samples;
static u8 *body_tail;
static u64 total_published, total_delivered, total_confirmed, checked, wrong;
static u64 step, last_due; /* with --rate: nanoseconds between two messages, what the last delivery carried */
static u32 nsamples;
/* With --rate, from when a message was due: to its delivery, to its confirm. */
typedef struct {
    u64 *ns, n, max;
} times;
static times latencies, confirm_times;
static u64 first_due;
static int latency_on;

static conn *dial_one(int is_pub, int node) {
    conn *c = &conns[nconns++];
    dial(c, o_host, ports[node % nports], o_user, o_pass, o_vhost);
    c->is_pub = is_pub;
    return c;
}
static char *queue_name(int i) {
    static char name[128];
    snprintf(name, sizeof name, "%s.q%d", o_prefix, i);
    return name;
}
/* Binding i and a key that it alone matches; eight zeros in the key stand where --unique writes its serial number. */
static void topic_pair(int i, char *pattern, char *key) {
    switch (i % 10) {
    case 0: case 1: case 2: case 3:
        sprintf(pattern, "dev.%d.*.temp", i), sprintf(key, "dev.%d.%s.temp", i, o_unique ? "00000000" : "k1");
        break;
    case 4: case 5: case 6:
        sprintf(pattern, "dev.%d.status.#", i), sprintf(key, "dev.%d.status.%s", i, o_unique ? "00000000" : "a.b");
        break;
    case 7: case 8:
        sprintf(pattern, "*.%d.alarm.*", i), sprintf(key, "%s.%d.alarm.fire", o_unique ? "00000000" : "site", i);
        break;
    default:
        sprintf(pattern, "#.evt%d", i), sprintf(key, "x.%s.evt%d", o_unique ? "00000000" : "y", i);
    }
}
/* An id: `prefix`, then the digits that `write_ids` writes. */
static void id_text(buf *b, sample *s, const char *prefix) {
    int i = 0;
    while (s->ids[i]) i++;
    bput(b, prefix, strlen(prefix));
    s->ids[i] = b->n;
    bput(b, "000000000000", ID_DIGITS);
}
#define ID_PREFIX "4bf92f35-77b3-4da6-a3ce-"
#define ID_SIZE (sizeof ID_PREFIX - 1 + ID_DIGITS)
static void header_id(buf *b, sample *s, const char *name) {
    bshort(b, name), b8(b, 'S'), b32(b, ID_SIZE), id_text(b, s, ID_PREFIX);
}
static void header_text(buf *b, const char *name, const char *text) { bshort(b, name), b8(b, 'S'), blong(b, text); }
static void header_void(buf *b, const char *name) { bshort(b, name), b8(b, 'V'); }
static void header_int(buf *b, const char *name, u32 value) { bshort(b, name), b8(b, 'I'), b32(b, value); }
static void five_headers(buf *b, sample *s) {
    header_text(b, "tenant", "acme-industries");
    header_id(b, s, "trace-id");
    header_text(b, "content-class", "telemetry");
    header_int(b, "attempt", 3);
    bshort(b, "sampled"), b8(b, 't'), b8(b, 1);
}
/* Celery's task protocol 2, as kombu and py-amqp send it: https://docs.celeryq.dev/en/stable/internals/protocol.html */
static void celery_headers(buf *b, sample *s, u32 n) {
    header_text(b, "lang", "py"), header_text(b, "task", "shop.tasks.send_invoice");
    header_id(b, s, "id");
    header_void(b, "shadow"), header_void(b, "eta"), header_void(b, "expires"), header_void(b, "group");
    header_void(b, "group_index"), header_int(b, "retries", 0);
    bshort(b, "timelimit"), b8(b, 'A'), b32(b, 2), b8(b, 'V'), b8(b, 'V');
    header_id(b, s, "root_id"), header_void(b, "parent_id");
    static const char more[] = ", 'mail', 'paper', 'archive'";
    u32 shown = n * 7 % sizeof more;
    bshort(b, "argsrepr"), b8(b, 'S'), b32(b, 1 + ID_DIGITS + shown + 1);
    id_text(b, s, "("), bput(b, more, shown), b8(b, ')');
    header_text(b, "kwargsrepr", "{}"), header_text(b, "origin", "gen4711@web-3.example.net");
    bshort(b, "ignore_result"), b8(b, 't'), b8(b, 0);
}
#define GROUP_DIGITS 5 /* and then the delivery mode, the header's last byte */
static void group_header(buf *b, u32 n) {
    char text[32];
    snprintf(text, sizeof text, "customer-%0*u", GROUP_DIGITS, (u32)((unsigned long long)n * 2654435761u % (u32)o_groups));
    header_text(b, "group", text);
}
static u32 size_of_body(u32 n) { return o_body + (n * 2654435761u >> 8) % (u32)(o_bodymax - o_body + 1); }
static void encode_header(sample *s, u32 n) {
    buf b = {0};
    s->body_size = size_of_body(n);
    b16(&b, 60), b16(&b, 0), b64(&b, s->body_size);
    /* content type, encoding, headers, delivery mode, priority, correlation id, reply to; headers, mode, expiration */
    b16(&b, o_celery ? 0xFE00 : o_rich ? 0x3100 : o_groups ? 0x3000 : 0x1000);
    if (o_celery) bshort(&b, "application/json"), bshort(&b, "utf-8");
    if (o_ids || o_groups) {
        size_t at = (b32(&b, 0), b.n);
        if (o_celery) celery_headers(&b, s, n);
        else if (o_rich) five_headers(&b, s);
        else group_header(&b, n);
        u32 size = htonl(b.n - at);
        memcpy(b.p + at - 4, &size, 4);
    }
    b8(&b, o_persist ? 2 : 1);
    if (o_celery) {
        b8(&b, 0), b8(&b, ID_SIZE), id_text(&b, s, ID_PREFIX);
        bshort(&b, "8d2c7a61-3f0e-3b5d-9a44-1c6be0f2d357");
    }
    if (o_rich) bshort(&b, "600000");
    s->header = b.p, s->header_size = b.n;
}
static void write_ids(u8 *header, const sample *s, u64 serial) {
    u8 text[ID_DIGITS];
    for (int i = ID_DIGITS - 1; i >= 0; i--, serial >>= 4) text[i] = "0123456789abcdef"[serial & 15];
    for (const u16 *at = s->ids; *at; at++) memcpy(header + *at, text, ID_DIGITS);
}
static u64 read_id(const u8 *text) {
    u64 serial = 0;
    for (int i = 0; i < ID_DIGITS; i++) serial = serial << 4 | (text[i] <= '9' ? text[i] - '0' : text[i] - 'a' + 10);
    return serial;
}
static void encode_publish(buf *b, const char *exchange, const char *key, const sample *s, u64 number) {
    size_t at = method_begin(b, 1, 60, 40);
    b16(b, 0), bshort(b, exchange), bshort(b, key), b8(b, 0), frame_end(b, at);
    at = frame_begin(b, 2, 1);
    bput(b, s->header, s->header_size), frame_end(b, at);
    at = frame_begin(b, 3, 1);
    bput(b, &number, 8), bput(b, body_tail, s->body_size - 8), frame_end(b, at);
}
static size_t method_frame_size(const char *exchange, const char *key) {
    return 7 + 4 + 2 + 1 + strlen(exchange) + 1 + strlen(key) + 1 + 1;
}
/* A whole multiple of the keys, two chunks at least; the first blob's number of messages holds for all. */
static void make_blob(conn *c, const char *exchange, char **keys, u32 nkeys) {
    buf b = {0};
    u32 n = 0, cap = 0;
    while (blob_messages ? n < blob_messages : n == 0 || n < (u32)o_groups || b.n < (size_t)o_chunk * 2)
        for (u32 k = 0; k < nkeys; k++) {
            if (n + 2 > cap) {
                cap = cap * 2 + 4096;
                c->off = realloc(c->off, sizeof(size_t) * cap), c->uniq = realloc(c->uniq, sizeof(size_t) * cap);
                if (!c->off || !c->uniq) die("out of memory");
            }
            if (n == nsamples) {
                if (n % 4096 == 0 && !(samples = realloc(samples, sizeof(sample) * (n + 4096)))) die("out of memory");
                memset(&samples[n], 0, sizeof(sample));
                encode_header(&samples[n], n), nsamples++;
            }
            c->off[n] = b.n;
            encode_publish(&b, exchange, keys[k], &samples[n], n + 1);
            if (o_unique) { /* frame header, method, ticket, exchange, key */
                const char *zeros = strstr(keys[k], "00000000");
                c->uniq[n] = c->off[n] + 7 + 4 + 2 + 1 + strlen(exchange) + 1 + (size_t)(zeros - keys[k]);
            } else c->uniq[n] = c->off[n] + method_frame_size(exchange, keys[k]) + 7; /* the header's payload */
            n++;
        }
    c->off[n] = b.n;
    c->blob = b.p, c->nblob = blob_messages = n;
}
/* What is another one in each message, for those about to be sent. */
static void write_serials(conn *c, u32 from, u32 to) {
    static const char digits[] = "0123456789abcdef";
    for (; from < to; from++) {
        u8 *p = c->blob + c->uniq[from];
        u64 v = ++c->serial;
        if (o_ids) {
            write_ids(p, &samples[from], v);
            memcpy(p + samples[from].header_size + 1 + 7, &v, 8);
        } else
            for (int i = 7; i >= 0; i--, v >>= 4) p[i] = digits[v & 15];
    }
    c->fresh = to;
}

/* ---- the measured road ---- */
static void flush_control(conn *c) {
    while (c->wo < c->w.n) {
        ssize_t k = write(c->fd, c->w.p + c->wo, c->w.n - c->wo);
        if (k >= 0) c->wo += k;
        else if (errno == EAGAIN) {
            c->want_w = 1;
            return;
        } else if (errno != EINTR) die("write: %s", strerror(errno));
    }
    c->w.n = c->wo = 0;
}
/* Sends up to n messages; stops when the socket is full (want_w). */
static void publish_some(conn *c, u64 n) {
    u64 sent = 0;
    c->want_w = 0;
    while (n) {
        u64 m = c->nblob - c->bi;
        if (m > n) m = n;
        size_t start = c->off[c->bi] + c->bo, end = c->off[c->bi + m];
        if (end - start > (size_t)o_chunk) {
            u32 j = c->bi + 1;
            while (c->off[j] - start < (size_t)o_chunk) j++;
            if (j - c->bi < m) m = j - c->bi;
            end = c->off[c->bi + m];
        }
        if ((o_unique || o_ids) && c->fresh < c->bi + m) write_serials(c, c->fresh, c->bi + m);
        ssize_t k = write(c->fd, c->blob + start, end - start);
        if (k < 0) {
            if (errno == EINTR) continue;
            if (errno != EAGAIN) die("publish: %s", strerror(errno));
            c->want_w = 1;
            break;
        }
        if ((size_t)k == end - start) {
            c->bi += m, c->bo = 0, sent += m, n -= m;
            if (c->bi == c->nblob) c->bi = c->fresh = 0;
            continue;
        }
        size_t at = start + k;
        u32 j = c->bi;
        while (c->off[j + 1] <= at) j++;
        sent += j - c->bi, c->bi = j, c->bo = at - c->off[j], c->want_w = 1;
        break;
    }
    c->published += sent, total_published += sent;
}
static void took(times *t, u64 since) {
    if (t->n < t->max) t->ns[t->n++] = now_ns() - since;
}
static void confirmed(conn *c, u64 tag, int multiple) {
    u64 before = c->conf_low;
    if (tag > c->published + 1) die("confirm of %lu, published %lu", tag, c->published);
    if (multiple)
        while (c->conf_low < tag) c->ring[++c->conf_low & c->rmask] = 0;
    else c->ring[tag & c->rmask] = 1;
    while (c->ring[(c->conf_low + 1) & c->rmask]) c->ring[++c->conf_low & c->rmask] = 0;
    total_confirmed += c->conf_low - before;
    while (latency_on && before < c->conf_low) took(&confirm_times, first_due + before++ * step);
}
/* How many offsets up to this one may be no message's. RabbitMQ begins each segment of 500 MB with a record of its own. */
static u64 gaps_allowed(u64 offset) { return offset * o_body / GAP_BYTES; }
/* What a stream adds: a table of headers with the offset in it, behind the flags. Offsets rise by one, and by two over one
 * that is no message's. */
static void check_stream_header(conn *c, const u8 *header, u32 size, u64 nth) {
    static const u8 table[] = "\0\0\0\x19\x0fx-stream-offsetl";
    const u32 more = sizeof table - 1 + 8;
    const sample *s = samples;
    u32 flags = 12 + 2; /* class, weight, size; flags */
    if (size != s->header_size + more || memcmp(header, s->header, 12) || header[12] != (s->header[12] | 0x20)
        || memcmp(header + flags, table, sizeof table - 1)
        || memcmp(header + flags + more, s->header + flags, s->header_size - flags)) {
        wrong++;
        return;
    }
    u64 offset = g64(header + flags + sizeof table - 1), due = c->v_first + c->v_gaps + nth;
    if (offset == due + 1 && c->v_before + c->v_gaps < gaps_allowed(offset)) c->v_gaps++;
    else if (offset != due) wrong++;
}
/* The number of a consumer's nth message. Bodies count messages, so the first one tells what was passed over before it:
 * nothing, where it is the beginning of the stream. */
static u64 number_in_stream(conn *c, u64 number, u64 nth) {
    if (!nth) {
        u64 before = (c->v_first % blob_messages + blob_messages + 1 - number) % blob_messages;
        if (before + c->v_gaps <= gaps_allowed(c->v_first + c->v_gaps)) c->v_before = before;
    }
    return c->v_first - c->v_before + nth;
}
/* The header names its message by its ids, and that says what all of it must be. */
static void check_header(conn *c, const u8 *header, u32 size) {
    const sample *s = samples;
    if (o_ids) {
        if (size < s->ids[0] + (u32)ID_DIGITS) {
            wrong++;
            return;
        }
        c->v_serial = read_id(header + s->ids[0]);
        s = &samples[(c->v_serial - 1) % blob_messages];
        write_ids(s->header, s, c->v_serial);
    } else if (o_bodymax > o_body && size >= 12) {
        /* the body's size is its number's to tell */
        if (size != s->header_size || memcmp(header, s->header, 8) || memcmp(header + 12, s->header + 12, size - 12)) wrong++;
        c->v_size = g32(header + 8);
        return;
    }
    if (o_groups) { /* the body tells of which group it is */
        u32 at = s->header_size - 1 - GROUP_DIGITS;
        if (size != s->header_size || memcmp(header, s->header, at) || header[size - 1] != s->header[size - 1]) wrong++;
        else memcpy(c->v_group, header + at, GROUP_DIGITS);
    } else if (size != s->header_size || memcmp(header, s->header, size)) wrong++;
}
static void check_body(conn *c, const u8 *body, u32 size, u64 nth) {
    u64 number;
    memcpy(&number, body, 8);
    checked++;
    const sample *s = &samples[o_rate || !number ? 0 : (number - 1) % blob_messages];
    if (size != s->body_size || (size > 8 && memcmp(body + 8, body_tail, size - 8))) wrong++;
    else if (o_ids ? number != c->v_serial : o_bodymax > o_body && size != c->v_size) wrong++;
    else if (o_groups && memcmp(c->v_group, s->header + s->header_size - 1 - GROUP_DIGITS, GROUP_DIGITS)) wrong++;
    else if (o_rate && o_consumers == 1) {
        if (last_due && number != last_due + step) wrong++;
        last_due = number;
    } else if (c->v_stride) {
        u64 due = o_stream ? number_in_stream(c, number, nth) : c->v_first + nth * c->v_stride;
        if (number != (o_ids ? due : due % blob_messages) + 1) wrong++;
    }
}
/* Reads once and handles every whole frame; returns the bytes read. */
static size_t receive(conn *c) {
    ssize_t got = 0;
    if (c->re < RBUF) { /* a buffer left full by the set-up is looked at first */
        got = read(c->fd, c->rb + c->re, RBUF - c->re);
        if (got == 0) die("the server closed the socket");
        if (got < 0 && errno != EAGAIN && errno != EINTR) die("read: %s", strerror(errno));
        if (got < 0) got = 0;
    }
    c->re += got;
    u8 *p = c->rb + c->rs, *end = c->rb + c->re;
    u64 bodies = 0, methods = 0;
    while (end - p >= 7) {
        u32 size = g32(p + 3);
        if ((u64)(end - p) < 8ull + size) break;
        if (p[7 + size] != 0xCE) die("bad frame end, type %u, size %u", p[0], size);
        if (p[0] == 3) {
            if (o_verify) check_body(c, p + 7, size, c->delivered + bodies);
            bodies++;
            if (latency_on) {
                u64 due;
                memcpy(&due, p + 7, 8);
                took(&latencies, due);
            }
        } else if (p[0] == 1) {
            u32 method = g32(p + 7);
            if (method == METHOD(60, 60)) {
                methods++;
                if (o_verify && g64(p + 12 + p[11]) != c->delivered + bodies + 1) wrong++;
            } else if (method == METHOD(60, 80)) confirmed(c, g64(p + 11), p[19]);
            else if (method == METHOD(60, 120)) c->nnack++, confirmed(c, g64(p + 11), p[19] & 1);
            else die_of_close(method, p + 11);
        } else if (p[0] == 2 && o_verify && o_stream) check_stream_header(c, p + 7, size, c->delivered + bodies);
        else if (p[0] == 2 && o_verify) check_header(c, p + 7, size);
        p += 8 + size;
    }
    c->rs = p - c->rb;
    if (c->rs == c->re) c->rs = c->re = 0;
    else if (RBUF - c->re < 160 * 1024) {
        memmove(c->rb, c->rb + c->rs, c->re - c->rs);
        c->re -= c->rs, c->rs = 0;
    }
    c->delivered += bodies, total_delivered += bodies;
    if (bodies && !o_autoack && c->delivered - c->acked >= (u64)o_ackevery) {
        size_t at = method_begin(&c->w, 1, 60, 80);
        b64(&c->w, c->delivered), b8(&c->w, 1), frame_end(&c->w, at);
        c->acked = c->delivered;
        flush_control(c);
    }
    return got;
}
static void receive_all(conn *c) {
    size_t room;
    do room = RBUF - c->re;
    while (receive(c) == room);
}
static u64 room_for(conn *c, int i, conn *consumer0, int has_consumers, u64 copies) {
    u64 room = 1 << 20;
    if (o_confirm) {
        u64 out = c->published - c->conf_low;
        room = out >= (u64)o_window ? 0 : o_window - out;
    }
    if (o_inflight && has_consumers) {
        u64 out = o_pair ? c->published - consumer0[i].delivered : total_published * copies - total_delivered;
        u64 limit = (u64)o_inflight * copies, left = out >= limit ? 0 : (limit - out) / copies;
        if (left < room) room = left;
    }
    if (o_count) {
        u64 left = o_count > total_published ? (u64)o_count - total_published : 0;
        if (left < room) room = left;
    }
    return room;
}

/* ---- measurement ---- */
typedef struct {
    u64 at, cpu, beside_cpu, published, delivered, confirmed, own_cpu;
} snapshot;
static u64 cpu_of(int pid) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY);
    if (fd < 0) return 0;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) return 0;
    text[n] = 0;
    unsigned long user = 0, system = 0;
    char *p = strrchr(text, ')'); /* the name before it may hold anything */
    if (p) sscanf(p + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system);
    return (u64)(user + system) * (1000000000ull / sysconf(_SC_CLK_TCK));
}
static u64 cpu_of_all(const int *of, int n) {
    u64 sum = 0;
    while (n--) sum += cpu_of(of[n]);
    return sum;
}
typedef struct {
    long rss_kb, rss_peak_kb, anon_peak_kb;
} memory;
static memory broker_memory, beside_memory;
static void add_memory_of(int pid, long *rss, long *anon) {
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE *file = fopen(path, "r");
    if (!file) return;
    while (fgets(line, sizeof line, file)) {
        if (!strncmp(line, "VmRSS:", 6)) *rss += atol(line + 6);
        if (!strncmp(line, "RssAnon:", 8)) *anon += atol(line + 8);
    }
    fclose(file);
}
static void sample_memory_of(memory *m, const int *of, int n) {
    long rss = 0, anon = 0;
    while (n--) add_memory_of(of[n], &rss, &anon);
    m->rss_kb = rss;
    if (rss > m->rss_peak_kb) m->rss_peak_kb = rss;
    if (anon > m->anon_peak_kb) m->anon_peak_kb = anon;
}
static void sample_memory(void) {
    sample_memory_of(&broker_memory, pids, npids);
    sample_memory_of(&beside_memory, besides, nbesides);
}
static snapshot snap(void) {
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    u64 own = (u64)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) * 1000000000ull + (r.ru_utime.tv_usec + r.ru_stime.tv_usec) * 1000ull;
    u64 cpu = cpu_of_all(pids, npids), beside_cpu = cpu_of_all(besides, nbesides);
    return (snapshot){now_ns(), cpu, beside_cpu, total_published, total_delivered, total_confirmed, own};
}
static int by_value(const void *a, const void *b) {
    u64 x = *(const u64 *)a, y = *(const u64 *)b;
    return x < y ? -1 : x > y;
}
static void tell_times(const char *name, times *t) {
    if (!t->n) return;
    qsort(t->ns, t->n, 8, by_value);
    printf(",\"%sp50_us\":%.1f,\"%sp99_us\":%.1f,\"%sp999_us\":%.1f,\"%smax_us\":%.1f", name, t->ns[t->n / 2] / 1e3, name,
           t->ns[t->n * 99 / 100] / 1e3, name, t->ns[t->n * 999 / 1000] / 1e3, name, t->ns[t->n - 1] / 1e3);
}
static void answer(snapshot a, snapshot z, double setup_s) {
    double seconds = (z.at - a.at) / 1e9, cpu = (z.cpu - a.cpu) / 1e9;
    u64 messages = o_pubonly ? (o_confirm ? z.confirmed - a.confirmed : z.published - a.published) : z.delivered - a.delivered;
    u64 nacks = 0;
    for (int i = 0; i < nconns; i++) nacks += conns[i].nnack;
    printf("{\"name\":\"%s\",\"seconds\":%.3f,\"messages\":%lu,\"rate\":%.0f,\"published_rate\":%.0f,\"confirmed_rate\":%.0f",
           o_name, seconds, messages, messages / seconds, (z.published - a.published) / seconds,
           (z.confirmed - a.confirmed) / seconds);
    printf(",\"broker_cores\":%.3f,\"generator_cores\":%.3f,\"setup_s\":%.2f,\"nacks\":%lu", cpu / seconds,
           (z.own_cpu - a.own_cpu) / 1e9 / seconds, setup_s, nacks);
    if (npids && messages)
        printf(",\"cpu_us\":%.4f,\"rss_mb\":%.1f,\"rss_peak_mb\":%.1f,\"anon_peak_mb\":%.1f", cpu * 1e6 / messages,
               broker_memory.rss_kb / 1024.0, broker_memory.rss_peak_kb / 1024.0, broker_memory.anon_peak_kb / 1024.0);
    if (nbesides && messages)
        printf(",\"beside_cpu_us\":%.4f,\"beside_cores\":%.3f,\"beside_anon_peak_mb\":%.1f",
               (z.beside_cpu - a.beside_cpu) / 1e3 / messages, (z.beside_cpu - a.beside_cpu) / 1e9 / seconds,
               beside_memory.anon_peak_kb / 1024.0);
    tell_times("", &latencies), tell_times("confirm_", &confirm_times);
    if (o_verify) printf(",\"checked\":%lu,\"wrong\":%lu", checked, wrong);
    printf("}\n");
    fflush(stdout);
}

/* ---- one run ---- */
static void prepare_keys(conn *control, const char *exchange, char **keys, u32 *nkeys) {
    buf b = {0};
    for (int i = 0; i < o_queues; i++) {
        conn *at = &control[i % nports];
        if (o_keep && !o_drain) delete_queue(at, queue_name(i)); /* what an earlier run may have left */
        declare_queue(at, queue_name(i), (declared){o_durable, o_stream, o_groupby, o_quorum});
    }
    *nkeys = 0;
    if (o_fanout) {
        declare_exchange(control, exchange, "fanout");
        for (int i = 0; i < o_queues; i++) bind_queue(control, &b, exchange, queue_name(i), "", 0);
        keys[(*nkeys)++] = strdup("");
    } else if (o_topic) {
        char pattern[64], key[64];
        declare_exchange(control, exchange, "topic");
        for (int i = 0; i < o_topic; i++) {
            topic_pair(i, pattern, key);
            int q = i / 10 % 10;
            if (!q) keys[(*nkeys)++] = strdup(key);
            bind_queue(control, &b, exchange, queue_name(q % o_queues), pattern, 1);
            if (b.n > 8000) write_all(control, b.p, b.n), b.n = 0;
        }
        write_all(control, b.p, b.n), b.n = 0;
        bind_queue(control, &b, exchange, queue_name(0), "never.matches.final", 0);
        u32 seed = 12345; /* the same order every time, neighbours unrelated */
        for (u32 i = *nkeys - 1; i > 0; i--) {
            seed = seed * 1664525u + 1013904223u;
            u32 j = (seed >> 8) % (i + 1);
            char *other = keys[i];
            keys[i] = keys[j], keys[j] = other;
        }
    } else
        for (int i = 0; i < (o_rr || o_pair ? o_queues : 1); i++) keys[(*nkeys)++] = strdup(queue_name(i));
    free(b.p);
}
/* What a consumer's k-th message must carry, where one publisher's order reaches it. */
static void expect(conn *c, int consumer) {
    c->v_first = o_rr ? consumer : 0;
    c->v_stride = o_rate ? 0 : o_rr && o_publishers == 1 && o_consumers == o_queues ? (u32)o_queues : 1;
    if (!o_pair && !o_fanout && !o_rr && (o_publishers > 1 || o_consumers > 1)) c->v_stride = 0;
}
int main(int count, char **words) {
    read_options(count, words);
    char prefix[32], exchange[160];
    snprintf(prefix, sizeof prefix, "perf%d", (int)getpid());
    if (!o_prefix) o_prefix = prefix;
    snprintf(exchange, sizeof exchange, "%s.x", o_prefix);
    body_tail = malloc(o_bodymax);
    for (int i = 8; i < o_bodymax; i++) body_tail[i - 8] = 'a' + i % 26;

    conn *control = conns; /* one at each node */
    for (int i = 0; i < nports; i++) dial_one(0, i);
    char **keys = calloc(100000, sizeof *keys);
    u32 nkeys;
    u64 began = now_ns();
    prepare_keys(control, exchange, keys, &nkeys);
    double setup_s = (now_ns() - began) / 1e9;
    const char *to = o_fanout || o_topic ? exchange : "";
    int npublishers = o_drain ? 0 : o_publishers, nconsumers = o_pubonly ? 0 : o_consumers, first = nconns;
    for (int i = 0; i < nconsumers; i++) {
        conn *c = dial_one(0, i);
        expect(c, i);
        if (o_stream) c->v_stride = 1, c->v_first = o_spread ? (u64)o_count / o_consumers * i : 0;
        consume(c, queue_name(o_topic ? 0 : i % o_queues), o_prefetch, o_autoack, o_stream ? (int64_t)c->v_first : -1);
    }
    conn *publishers = conns + nconns;
    for (int i = 0; i < npublishers; i++) {
        conn *c = dial_one(1, nconsumers + i);
        make_blob(c, to, keys + (o_pair ? i : 0), o_pair ? 1 : nkeys);
        if (!o_confirm) continue;
        confirm_select(c);
        u32 size = 1;
        while (size < (u32)(o_rate ? o_rate * CONFIRM_S : o_window) * 4 + 16) size *= 2;
        c->ring = calloc(size, 1), c->rmask = size - 1;
    }
    if (o_drain) make_blob(&(conn){0}, to, keys, nkeys); /* the numbers that the run before has published */

    int ep = epoll_create1(0), timer = -1;
    for (int i = first; i < nconns; i++) {
        fcntl(conns[i].fd, F_SETFL, O_NONBLOCK);
        struct epoll_event want = {.events = EPOLLIN | EPOLLET | (o_rate && conns[i].is_pub ? 0 : EPOLLOUT), .data.ptr = &conns[i]};
        epoll_ctl(ep, EPOLL_CTL_ADD, conns[i].fd, &want);
    }
    u64 due = 0, copies = o_fanout ? o_queues : 1;
    buf one = {0};
    if (o_rate) {
        timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
        step = 1000000000ull / o_rate, due = first_due = now_ns() + 100000000;
        struct itimerspec every = {{step / 1000000000ull, step % 1000000000ull}, {due / 1000000000ull, due % 1000000000ull}};
        timerfd_settime(timer, TFD_TIMER_ABSTIME, &every, 0);
        struct epoll_event want = {.events = EPOLLIN, .data.ptr = &timer};
        epoll_ctl(ep, EPOLL_CTL_ADD, timer, &want);
        latencies.max = confirm_times.max = (u64)(o_rate * (o_time + 1)) + 1000;
        latencies.ns = malloc(latencies.max * 8), confirm_times.ns = malloc(latencies.max * 8);
        if (!latencies.ns || !confirm_times.ns) die("out of memory");
    }
    u64 start = now_ns(), warm_end = start + (u64)(o_warm * 1e9), sampled = 0, moved = start;
    u64 end = o_count ? ~0ull : warm_end + (u64)(o_time * 1e9);
    int measuring = o_count > 0, ended = 0;
    snapshot a = snap(), z = a;
    for (int i = first; i < nconns; i++) receive_all(&conns[i]); /* edge-triggered epoll does not repeat what came early */
    struct epoll_event events[256];
    for (;;) {
        u64 t = now_ns();
        if (t - sampled > 200000000) sample_memory(), sampled = t;
        if (!measuring && t >= warm_end) measuring = 1, a = snap(), latency_on = o_rate > 0;
        /* A broker that has delivered nothing yet gets some more time, rather than no figure. */
        if (t >= end && o_rate) {
            if (!ended) ended = 1, z = snap();
            if (total_delivered >= total_published && (!o_confirm || total_confirmed >= total_published)) break;
            if (t - end > PATIENCE_S * 1000000000ull)
                die("%lu messages have not come, %lu confirms", total_published - total_delivered,
                    o_confirm ? total_published - total_confirmed : 0);
        } else if (t >= end && (total_delivered > a.delivered || o_pubonly || t - end > PATIENCE_S * 1000000000ull)) break;
        if (o_count && o_pubonly && (o_confirm ? total_confirmed : total_published) >= o_count) break;
        if (o_count && !o_pubonly && total_delivered >= o_count * copies) break;
        if (!o_rate)
            for (int i = 0; i < npublishers; i++) {
                u64 room = room_for(&publishers[i], i, conns + first, nconsumers, copies);
                if (room && !publishers[i].want_w) publish_some(&publishers[i], room);
            }
        if (o_coalesce && !o_rate) nanosleep(&(struct timespec){0, o_coalesce * 1000}, 0);
        int n = epoll_wait(ep, events, 256, 100);
        if (n > 0) moved = t;
        else if (t - moved > STALL_S * 1000000000ull)
            die("nothing moved for %d s: published %lu, confirmed %lu, delivered %lu", STALL_S, total_published, total_confirmed,
                total_delivered);
        for (int i = 0; i < n; i++) {
            if (events[i].data.ptr == &timer) {
                u64 ticks;
                if (read(timer, &ticks, 8) != 8) continue;
                for (; ticks && !ended; ticks--, due += step) {
                    one.n = 0;
                    encode_publish(&one, to, keys[total_published % nkeys], samples, due);
                    write_all(publishers, one.p, one.n);
                    publishers->published++, total_published++;
                }
                continue;
            }
            conn *c = events[i].data.ptr;
            if (events[i].events & EPOLLOUT) {
                c->want_w = 0;
                if (c->w.n) flush_control(c);
            }
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive_all(c);
        }
    }
    sample_memory();
    answer(a, ended ? z : snap(), setup_s);
    for (int i = first; i < nconns; i++) close(conns[i].fd);
    if (!o_keep) {
        for (int i = 0; i < o_queues; i++) delete_queue(&control[i % nports], queue_name(i));
        if (*to) delete_exchange(control, to);
    }
    for (int i = 0; i < first; i++) close(conns[i].fd);
    return wrong ? 3 : 0;
}
