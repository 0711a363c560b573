# A bolt in Perl: the words of a sentence, with the number of sentences so far. An empty one fails.
# It reads the task ids that answer its emits. Tuples may come before them, and are kept for later.
use strict;
use warnings;
use JSON::PP;

$| = 1;
my $json = JSON::PP->new->utf8;
my $sentences = 0;
my @later;

sub read_message {
    my $text = "";
    while (defined(my $line = <STDIN>)) {
        return $json->decode($text) if $line eq "end\n";
        $text .= $line;
    }
    exit 0;
}

sub send_message { print $json->encode($_[0]), "\nend\n" }

sub read_task_ids {
    while (1) {
        my $message = read_message();
        return $message if ref $message eq "ARRAY";
        push @later, $message;
    }
}

sub split_sentence {
    my ($id, $sentence) = @_;
    my @words = split(" ", $sentence);
    if (!@words) {
        send_message({ command => "fail", id => $id });
        return;
    }
    $sentences++;
    for my $word (@words) {
        send_message({ command => "emit", anchors => [$id], tuple => [ $word, $sentences ] });
        read_task_ids();
    }
    send_message({ command => "ack", id => $id });
}

my $set_up = read_message();
open(my $file, ">", "$set_up->{pidDir}/$$") or die $!;
close $file;
send_message({ pid => $$ });

while (1) {
    my $message = @later ? shift @later : read_message();
    if ($message->{stream} eq "__heartbeat") {
        send_message({ command => "sync" });
    } elsif ($message->{stream} eq "__tick") {
        send_message({ command => "log", msg => "$sentences sentences", level => 2 });
    } else {
        split_sentence($message->{id}, $message->{tuple}[0]);
    }
}
