// A bolt in Go: the words of a sentence, with the number of sentences so far. An empty one fails.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

type fields map[string]any

var input = bufio.NewReader(os.Stdin)
var sentences = 0

func read() (message fields) {
	text := ""
	for line := ""; line != "end\n"; {
		text += line
		var err error
		if line, err = input.ReadString('\n'); err != nil {
			os.Exit(0)
		}
	}
	if err := json.Unmarshal([]byte(text), &message); err != nil {
		panic(err)
	}
	return message
}

func send(message fields) {
	text, _ := json.Marshal(message)
	fmt.Printf("%s\nend\n", text)
}

func split(id any, words []string) {
	if len(words) == 0 {
		send(fields{"command": "fail", "id": id})
		return
	}
	sentences++
	for _, word := range words {
		tuple := []any{word, sentences}
		send(fields{"command": "emit", "anchors": []any{id}, "tuple": tuple, "need_task_ids": false})
	}
	send(fields{"command": "ack", "id": id})
}

func main() {
	os.WriteFile(fmt.Sprintf("%s/%d", read()["pidDir"], os.Getpid()), nil, 0o600)
	send(fields{"pid": os.Getpid()})
	for message := read(); ; message = read() {
		if message["stream"] == "__heartbeat" {
			send(fields{"command": "sync"})
		} else if message["stream"] != "__tick" {
			split(message["id"], strings.Fields(message["tuple"].([]any)[0].(string)))
		}
	}
}
