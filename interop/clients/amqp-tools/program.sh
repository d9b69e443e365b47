#!/usr/bin/env bash
# amqp-tools, the commands of rabbitmq-c: the scenarios of ../README.md.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

url=(--url "${AMQP_URL:-}")
if [[ -n ${CA_FILE:-} ]]; then url+=(--cacert "$CA_FILE"); fi
if [[ -n ${CERT_FILE:-} ]]; then url+=(--cert "$CERT_FILE" --key "$KEY_FILE"); fi

declare_queue() { amqp-declare-queue "${url[@]}" --queue "$@" > /dev/null; }
delete_queue() { amqp-delete-queue "${url[@]}" --queue "$1"; } # prints the number of messages
get() { amqp-get "${url[@]}" --queue "$1"; }
publish() { amqp-publish "${url[@]}" "$@"; }
consume() { amqp-consume "${url[@]}" "$@"; }

equal() { # GOT EXPECTED
    [[ $1 == "$2" ]] || { echo "Error: got '$1', expected '$2'" >&2; exit 1; }
}

refused() { # TEXT COMMAND ...
    local said
    if said=$("${@:2}" 2>&1); then echo "Error: not refused" >&2; exit 1; fi
    [[ $said == *"$1"* ]] || { echo "Error: $said" >&2; exit 1; }
}

not_offered() { echo "not offered: $1"; exit 0; }

connects() {
    declare_queue hello
    publish --routing-key hello --body "Hello World!"
    equal "$(get hello)" "Hello World!"
}

subscribe() { # FILE EXCHANGE KEY: write the body of one message to the file, in the background
    consume --queue "logs-$1" --exchange "$2" --routing-key "$3" --no-ack --count 1 cat > "$1" &
}

publish_until_received() { # EXCHANGE "KEY ..." FILE ...: the consumers may need a moment until they are bound
    local key file
    for file in "${@:3}"; do
        until [[ -s $file || -z $(jobs -r) ]]; do
            for key in $2; do publish --exchange "$1" --routing-key "$key" --body "$key"; done
        done
    done
    wait
}

case $1 in
version)
    dpkg-query --showformat '${Version}\n' --show amqp-tools
    exit
    ;;
connect | tls | client-certificate) connects ;;
bad-password) refused "ACCESS_REFUSED" declare_queue hello ;;
bad-vhost) refused "NOT_ALLOWED" declare_queue hello ;;
heartbeat)
    declare_queue beating
    consume --heartbeat 1 --queue beating --no-ack --count 1 cat > got &
    sleep 4
    publish --routing-key beating --body "still here"
    wait $!
    equal "$(< got)" "still here"
    ;;
inequivalent)
    declare_queue inequivalent --durable
    refused "inequivalent arg 'durable'" declare_queue inequivalent
    ;;
work-queue)
    declare_queue tasks --durable
    for worker in a b; do
        consume --queue tasks --prefetch-count 1 --count 5 cat > "$worker" &
    done
    for task in {0..9}; do publish --routing-key tasks --persistent --body "$task"; done
    wait
    equal "$(cat a b | grep -o . | sort | tr -d '\n')" 0123456789
    ;;
publish-subscribe)
    subscribe a amq.fanout any
    subscribe b amq.fanout any
    publish_until_received amq.fanout log a b
    equal "$(cat a b)" loglog
    ;;
routing)
    subscribe warnings amq.direct warning
    subscribe errors amq.direct error
    publish_until_received amq.direct "info warning error" warnings errors
    equal "$(< warnings) $(< errors)" "warning error"
    ;;
topics)
    subscribe critical amq.topic "*.critical"
    subscribe kernel amq.topic "kern.#"
    publish_until_received amq.topic "cron.info cron.critical kern.a.b" critical kernel
    equal "$(< critical) $(< kernel)" "cron.critical kern.a.b"
    ;;
bodies)
    declare_queue bodies
    for size in 0 1 131064 131065 $((1 << 20)) $((16 << 20)); do
        head -c "$size" /dev/urandom > sent
        publish --routing-key bodies < sent
        get bodies > got
        cmp sent got
    done
    ;;
policy)
    declare_queue limited
    for body in 1 2 3 4; do publish --routing-key limited --body "$body"; done
    equal "$(delete_queue limited)" 2
    ;;
write | read) not_offered "amqp-tools send no message id and only texts as headers, and print bodies only" ;;
headers | rpc | direct-reply-to | requeue | priority) not_offered "amqp-tools print the body of a message only" ;;
confirm | confirm-batch | mandatory | tx | reconnect) not_offered "amqp-tools have no confirms, returns and transactions" ;;
declare | missing | cancel | delayed) not_offered "amqp-tools declare and delete queues, and nothing else" ;;
channels | prefetch | broker-cancel | blocked) not_offered "each command has one channel, and shows messages only" ;;
*) not_offered "amqp-tools declare queues without arguments" ;;
esac
echo pass
