/* What the files of this program share: how it connects, declares, sends and receives with rabbitmq-c (librabbitmq). */
#pragma once
#define _GNU_SOURCE
#include <amqp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHANNEL 1
#define STR(text) amqp_cstring_bytes(text)
#define DO(call) (call, succeed(amqp_get_rpc_reply(c))) /* a call of the library that waits for an answer */
#define FIELD(name, type, member, content) \
  {.key = STR(name), .value = {.kind = AMQP_FIELD_KIND_##type, .value.member = content}}
#define TABLE(...) ((amqp_table_t){sizeof((Entry[]){__VA_ARGS__}) / sizeof(Entry), (Entry[]){__VA_ARGS__}})
#define NO_ARGUMENTS amqp_empty_table

typedef amqp_table_entry_t Entry;
typedef struct {
  const char *name;
  void (*run)(void);
} Scenario;

extern amqp_connection_state_t c; /* the connection of most scenarios */
extern const Scenario CONNECT[], TOPOLOGY[], PUBLISH[], CONSUME[], PATTERNS[], STREAMS[]; /* an empty one is the last */

amqp_rpc_reply_t log_in(int heartbeat_s);   /* returns the broker's answer */
bool show_refusal(amqp_rpc_reply_t reply);  /* prints it; returns false if it is none */
void succeed(amqp_rpc_reply_t reply);       /* ends the program, with the broker's or the library's error, if it failed */
void check(int status);                     /* the same for calls that only send */
void open_channel(int number);
void nap(long ms);

amqp_bytes_t declare_queue(const char *name, bool durable, amqp_table_t arguments); /* returns the name */
int ready_count(const char *queue);
int purge(const char *queue);               /* returns how many messages it had */
void bind_queue(amqp_bytes_t queue, const char *exchange, const char *key);

void publish(const char *exchange, const char *key, amqp_bytes_t body, const amqp_basic_properties_t *properties);
void send_text(const char *queue, const char *body);             /* persistent */
void send_digits(const char *queue, int count);                  /* "0", "1", ... */
void send_with_header(const char *exchange, const char *key, const char *body, Entry header);
void publish_confirmed(const char *queue, int count);            /* returns when all are confirmed */

void consume(amqp_bytes_t queue, const char *tag, bool no_ack, amqp_table_t arguments);
amqp_envelope_t next_message(void);         /* of any consumer of the connection */
uint64_t get(const char *queue, amqp_message_t *message, bool *redelivered); /* returns the delivery tag */
void *await_method(amqp_method_number_t id); /* a method that the broker sends by itself, such as an ack */
amqp_field_value_t field(amqp_table_t fields, const char *key);

void show(amqp_bytes_t text);
void show_messages(int count);
void receive(amqp_bytes_t queue, int count); /* consumes and shows so many messages */
void hello(void);
