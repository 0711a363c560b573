# A spout in Perl: four sentences, each again when it fails. One message is JSON and a line "end".
use strict;
use warnings;
use utf8;
use JSON::PP;

$| = 1;
my $json = JSON::PP->new->utf8;
my $id = 0;
my @waiting = map { { id => $id++, sentence => $_ } }
    ("the cow jumped over the moon", "an apple a day", "four score and seven", "naïve café");
my %open;

sub read_message {
    my $text = "";
    while (defined(my $line = <STDIN>)) {
        return $json->decode($text) if $line eq "end\n";
        $text .= $line;
    }
    exit 0;
}

sub send_message { print $json->encode($_[0]), "\nend\n" }

my $set_up = read_message();
open(my $file, ">", "$set_up->{pidDir}/$$") or die $!;
close $file;
send_message({ pid => $$ });

while (1) {
    my $message = read_message();
    my $command = $message->{command};
    if ($command eq "next" and my $next = shift @waiting) {
        $open{ $next->{id} } = $next;
        send_message({
            command => "emit", id => $next->{id}, tuple => [ $next->{sentence} ],
            need_task_ids => JSON::PP::false,
        });
    }
    delete $open{ $message->{id} } if $command eq "ack";
    push @waiting, $open{ $message->{id} } if $command eq "fail";
    send_message({ command => "sync" });
}
