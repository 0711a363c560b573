// A spout in Node: four sentences, each again when it fails. One message is JSON and a line "end".
"use strict";
const fs = require("fs");
const readline = require("readline");

const waiting = ["the cow jumped over the moon", "an apple a day", "four score and seven", "naïve café"].map(
    (sentence, id) => ({ id, sentence })
);
const open = new Map();

function send(message) {
    fs.writeSync(1, JSON.stringify(message) + "\nend\n");
}

function next() {
    const message = waiting.shift();
    if (message === undefined) return;
    open.set(message.id, message);
    send({ command: "emit", id: message.id, tuple: [message.sentence], need_task_ids: false });
}

function take(message) {
    if (message.pidDir !== undefined) {
        fs.writeFileSync(`${message.pidDir}/${process.pid}`, "");
        send({ pid: process.pid });
        return;
    }
    if (message.command === "next") next();
    if (message.command === "ack") open.delete(message.id);
    if (message.command === "fail") waiting.push(open.get(message.id));
    send({ command: "sync" });
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
