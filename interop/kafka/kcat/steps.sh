#!/usr/bin/env bash
# kcat: the steps of ../README.md that it can do; it cannot create topics, so STEPS_TOPIC exists and is empty.
#
#   STEPS_TOPIC=name steps.sh HOST:PORT [--records N]
set -uo pipefail
address=$1 records=${3:-10000}
if [[ $address == version ]]; then
    kcat -V | sed -nE 's/^Version ([0-9.]+) .*(librdkafka [0-9.]+).*/\1 (\2)/p'
    exit
fi
topic=$STEPS_TOPIC
group=group-$topic
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
options=(-b "$address")
if [[ -n ${STEPS_CA:-} ]]; then
    options+=(-X security.protocol=sasl_ssl -X sasl.mechanism=PLAIN -X ssl.ca.location="$STEPS_CA"
        -X sasl.username="$STEPS_USER" -X sasl.password="$STEPS_PASSWORD")
fi

step() { # NAME COMMAND...: print the JSON line of a step
    local ok=true detail
    detail=$("${@:2}" 2>&1) || { ok=false failed=1; }
    detail=${detail//[\\\"$'\t']/ }
    echo "{\"step\": \"$1\", \"ok\": $ok, \"detail\": \"${detail//$'\n'/ }\"}"
}

produce() {
    local codec first=0
    for codec in none gzip snappy lz4 zstd; do
        seq -f 'key:value %g' $first $((first + 199)) |
            kcat "${options[@]}" -P -t "$topic" -K : -z $codec -X acks=all -X enable.idempotence=true || return 1
        first=$((first + 200))
    done
    echo "$first records"
}

consume() {
    kcat "${options[@]}" -C -q -e -t "$topic" -o beginning -f '%o %k %s\n' > "$work/all" || return 1
    diff <(seq 0 999 | sed 's/.*/& key value &/') "$work/all" && wc -l < "$work/all"
}

member() { # FILE: join the group and write offsets to the file
    kcat "${options[@]}" -q -u -X auto.offset.reset=earliest -X session.timeout.ms=10000 -X heartbeat.interval.ms=500 \
        -f '%o\n' -G "$group" "$topic" > "$1" &
}

lines_reach() { # COUNT FILE...
    local deadline=$((SECONDS + 60))
    until (($(cat "${@:2}" | wc -l) >= $1)); do
        ((SECONDS < deadline)) || { echo "$(cat "${@:2}" | wc -l) records of $1"; return 1; }
        sleep 0.2
    done
}

rebalance() {
    local first second
    member "$work/first"; first=$!
    lines_reach 1000 "$work/first" || return 1
    member "$work/second"; second=$!
    kill -TERM $first && wait $first
    echo 'key:more' | kcat "${options[@]}" -P -t "$topic" -K : || return 1
    lines_reach 1001 "$work/first" "$work/second" || return 1
    kill -TERM $second && wait $second
    diff <(seq 0 1000) <(cat "$work/first" "$work/second") && echo "2 members, 1001 records"
}

resume() { # the group continues after its last commit
    local next
    echo 'key:last' | kcat "${options[@]}" -P -t "$topic" -K : || return 1
    next=$(kcat "${options[@]}" -q -c 1 -f '%o\n' -X auto.offset.reset=earliest -G "$group" "$topic")
    [[ $next == 1001 ]] && echo "from $next"
}

seek() {
    local time answer offset
    time=$(kcat "${options[@]}" -C -q -e -t "$topic" -o 1001 -c 1 -f '%T') || return 1
    answer=$(kcat "${options[@]}" -Q -t "$topic:0:$time") || return 1
    offset=$(kcat "${options[@]}" -C -q -e -t "$topic" -p 0 -o "s@$time" -c 1 -f '%o') || return 1
    [[ $answer == "$topic [0] offset 1001" && $offset == 1001 ]] || { echo "$answer, $offset"; return 1; }
    echo "$offset"
}

describe() {
    kcat "${options[@]}" -L -t "$topic" | grep -A1 "topic \"$topic\" with 1 partitions"
}

many() { # appended to the topic, since kcat makes none
    local start in out
    seq -f %0100.0f 1 "$records" > "$work/in"
    start=$(date +%s%N)
    kcat "${options[@]}" -P -t "$topic" -X acks=all -X enable.idempotence=true -l "$work/in" || return 1
    in=$(($(date +%s%N) - start)) start=$(date +%s%N)
    kcat "${options[@]}" -C -q -e -t "$topic" -o 1002 > "$work/out" || return 1
    out=$(($(date +%s%N) - start))
    cmp "$work/in" "$work/out" && echo "$records records: $((records * 1000000000 / in))/s in, $((records * 1000000000 / out))/s out"
}

headers() {
    kcat "${options[@]}" -P -t "$topic" -k key -H text=x -H text=again -H empty= < <(printf value) || return 1
    kcat "${options[@]}" -P -t "$topic" -K : -Z < <(echo deleted:) || return 1
    kcat "${options[@]}" -C -q -e -t "$topic" -o -2 -f '%k %s %S %h\n' > "$work/headers" || return 1
    printf 'key value 5 text=x,text=again,empty=\ndeleted  -1 \n' | diff - "$work/headers" && echo "2 records"
}

from_amqp() {
    kcat "${options[@]}" -C -q -e -t "$STEPS_CROSSING" -o beginning -f '%s\n' > "$work/from" || return 1
    seq -f 'from amqp %g' 0 9 | diff - "$work/from" && echo "10 records"
}

to_amqp() {
    seq -f 'from kafka %g' 0 9 | kcat "${options[@]}" -P -t "$STEPS_CROSSING" -X acks=all -X enable.idempotence=true || return 1
    echo "10 records"
}

not_offered() { # REASON STEP...
    local each
    for each in "${@:2}"; do echo "{\"step\": \"$each\", \"ok\": null, \"detail\": \"$1\"}"; done
}

for each in produce consume rebalance resume seek describe many headers; do step $each $each; done
if [[ -n ${STEPS_CROSSING:-} ]]; then
    step from-amqp from_amqp
    step to-amqp to_amqp
fi
not_offered "kcat reads and writes only" create transactions configs delete share
exit $failed
