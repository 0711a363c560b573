// A bolt in Node: the words of a sentence, with the number of sentences so far. An empty one fails.
"use strict";
const fs = require("fs");
const readline = require("readline");

let sentences = 0;

function send(message) {
    fs.writeSync(1, JSON.stringify(message) + "\nend\n");
}

function split({ id, tuple }) {
    if (!tuple[0].trim()) {
        send({ command: "fail", id });
        return;
    }
    sentences += 1;
    for (const word of tuple[0].trim().split(/\s+/)) {
        send({ command: "emit", anchors: [id], tuple: [word, sentences], need_task_ids: false });
    }
    send({ command: "ack", id });
}

function take(message) {
    if (message.pidDir !== undefined) {
        fs.writeFileSync(`${message.pidDir}/${process.pid}`, "");
        send({ pid: process.pid });
    } else if (message.stream === "__heartbeat") {
        send({ command: "sync" });
    } else if (message.stream === "__tick") {
        send({ command: "log", msg: `${sentences} sentences`, level: 2 });
    } else {
        split(message);
    }
}

let lines = [];
readline.createInterface({ input: process.stdin }).on("line", (line) => {
    if (line !== "end") {
        lines.push(line);
        return;
    }
    const message = JSON.parse(lines.join("\n"));
    lines = [];
    take(message);
});
