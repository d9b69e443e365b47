/* rabbitmq-c: connections. */
#include "common.h"
#include <amqp_ssl_socket.h>
#include <amqp_tcp_socket.h>

static amqp_socket_t *tls_socket(void) {
  amqp_socket_t *socket = amqp_ssl_socket_new(c);
  amqp_ssl_socket_set_verify_peer(socket, 1);
  amqp_ssl_socket_set_verify_hostname(socket, 1);
  check(amqp_ssl_socket_set_cacert(socket, getenv("CA_FILE")));
  if (getenv("CERT_FILE")) check(amqp_ssl_socket_set_key(socket, getenv("CERT_FILE"), getenv("KEY_FILE")));
  return socket;
}

amqp_rpc_reply_t log_in(int heartbeat_s) {
  struct amqp_connection_info info;
  amqp_default_connection_info(&info);
  check(amqp_parse_url(strdup(getenv("AMQP_URL")), &info));
  c = amqp_new_connection();
  amqp_socket_t *socket = info.ssl ? tls_socket() : amqp_tcp_socket_new(c);
  int status = amqp_socket_open(socket, info.host, info.port);
  if (status != AMQP_STATUS_OK) {
    return (amqp_rpc_reply_t){.reply_type = AMQP_RESPONSE_LIBRARY_EXCEPTION, .library_error = status};
  }
  amqp_table_t capabilities = TABLE(FIELD("consumer_cancel_notify", BOOLEAN, boolean, 1),
                                    FIELD("connection.blocked", BOOLEAN, boolean, 1));
  amqp_table_t properties = TABLE(FIELD("capabilities", TABLE, table, capabilities));
  return amqp_login_with_properties(c, info.vhost, 0, 131072, heartbeat_s, &properties, AMQP_SASL_METHOD_PLAIN, info.user,
                                    info.password);
}

static void connect_with_heartbeat(int heartbeat_s) {
  succeed(log_in(heartbeat_s));
  open_channel(CHANNEL);
}

static void connect(void) {
  connect_with_heartbeat(0);
  hello();
}

static void heartbeat(void) {
  connect_with_heartbeat(1);
  struct timeval wait = {0, 500000};
  amqp_frame_t frame; /* heartbeats are sent while the program waits for frames */
  for (int n = 0; n < 8; n++) amqp_simple_wait_frame_noblock(c, &frame, &wait);
  hello();
}

static void channels(void) {
  connect_with_heartbeat(0);
  declare_queue("channels", false, NO_ARGUMENTS);
  for (int n = 2; n <= 101; n++) open_channel(n);
  for (int n = 2; n <= 101; n++) check(amqp_basic_publish(c, n, STR(""), STR("channels"), 0, 0, NULL, STR("x")));
  consume(STR("channels"), "", true, NO_ARGUMENTS);
  int count = 0;
  while (count < 100) count += next_message().message.body.len;
  printf("%d\n", count);
}

static void blocked(void) {
  connect_with_heartbeat(0);
  send_text("nowhere", "held");
  amqp_connection_blocked_t *told = await_method(AMQP_CONNECTION_BLOCKED_METHOD);
  show(told->reason);
  puts("ready"); /* the runner ends the alarm */
  await_method(AMQP_CONNECTION_UNBLOCKED_METHOD);
  puts("unblocked");
}

static void reconnect(void) {
  connect_with_heartbeat(0);
  publish_confirmed("kept", 1);
  consume(STR("kept"), "", false, NO_ARGUMENTS);
  next_message();
  puts("ready"); /* the runner kills the broker and starts it again */
  amqp_frame_t frame;
  while (amqp_simple_wait_frame(c, &frame) == AMQP_STATUS_OK) continue;
  while (log_in(0).reply_type != AMQP_RESPONSE_NORMAL) nap(100);
  open_channel(CHANNEL);
  receive(STR("kept"), 1);
}

const Scenario CONNECT[] = {
    {"connect", connect}, {"bad-password", connect}, {"bad-vhost", connect}, {"tls", connect},
    {"client-certificate", connect}, {"heartbeat", heartbeat}, {"channels", channels}, {"blocked", blocked},
    {"reconnect", reconnect}, {0},
};
